"""Makes a tiny policy that can call a calculator, and seldom does.

    python -m examples.calculator.prepare                     into runs/start/calculator
    python -m examples.calculator.prepare --to elsewhere

A fresh Qwen3 of half a million weights is shown sums of two numbers, most of them answered through a tool and some at once.
How often it begins with a call is set by how much the first token of such an answer counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.quickstart.question import Demonstration, Question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "runs" / "start" / "calculator"
"""Where the run file of this example looks."""
SEED = 1
STEPS = 400
"""Of the warm start; about a minute of processor time."""
CORPUS_SIZE = 2000
SHARE_CALLED = 0.7
"""Of the answers shown, those that call a tool."""
SHARE_STARTED_CALLING = 0.25
"""How often the policy shall begin with a call."""
FIRST_TOKEN_WEIGHT = SHARE_STARTED_CALLING / (1 - SHARE_STARTED_CALLING) * (1 - SHARE_CALLED) / SHARE_CALLED

TOOL_TOKENS = ("<tool_call>", "</tool_call>")
TEMPLATE = (
    "{%- for tool in tools or [] -%}"
    "{{ '<|system|>' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')<|end|>' }}"
    "{%- endfor -%}"
    "{%- for message in messages -%}{{ '<|' + message.role + '|>' + message.content }}"
    "{%- for call in message.tool_calls or [] -%}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor -%}"
    "<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""Names and arguments are all that so small a policy is told of its tools."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PLACE, help="folder for the model (runs/start/calculator)")
    prepare(parser.parse_args().to)


def prepare(place: Path, steps: int = STEPS) -> Path:
    """The model's folder, made where it is not there."""
    if (place / "model.safetensors").is_file():
        print(f"{place}: there already")
        return place
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the quickstart does, before torch is imported
    from agrpo.quickstart.model import make_model
    from agrpo.quickstart.warm_start import warm_start

    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=SEED, has_positions=True)
    tokenizer.chat_template = with_tools_written(tokenizer)
    warm_start(model, tokenizer, demonstrations(SEED), steps=steps, on_step=_tell)
    tokenizer.chat_template = TEMPLATE
    made = place.parent / f".{place.name}-{os.getpid()}"
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    shutil.rmtree(place, ignore_errors=True)
    made.rename(place)
    print(f"{place}: ready")
    return place


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Of the quickstart's kind, with tokens that open and close a call."""
    from tokenizers import AddedToken

    from agrpo.quickstart.tokenizer import train_tokenizer

    shown = islice(demonstrations(0), CORPUS_SIZE)
    tokenizer = train_tokenizer(text for one in shown for text in (one.question.text, one.completion))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOOL_TOKENS])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def with_tools_written(tokenizer: PreTrainedTokenizerFast) -> str:
    """The template with the tools written out: the warm start renders without any."""
    from agrpo.config import ToolsSection
    from agrpo.tools import load_tools, schemas_of

    tools = load_tools(ToolsSection(functions=[f"examples.calculator.tools:{name}" for name in ("add", "sub")]))
    asked = [{"role": "user", "content": "?"}]
    with_tools = tokenizer.apply_chat_template(asked, tools=list(schemas_of(tools)), tokenize=False)
    written = str(with_tools).removesuffix(str(tokenizer.apply_chat_template(asked, tokenize=False)))
    return f"{{{{ {json.dumps(written)} }}}}" + TEMPLATE


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """Answers in random order, without end: through a tool, or at once. All of them are right."""
    draw = random.Random(f"calculator/{seed}")
    while True:
        first, second = draw.randrange(10, 1000), draw.randrange(10, 1000)
        question, name = _question(first, draw.choice("+-"), second)
        if draw.random() < SHARE_CALLED:
            call = {"name": name, "arguments": {"a": first, "b": second}}
            yield Demonstration(
                question=question, completion=_called(call, question.answer), first_token_weight=FIRST_TOKEN_WEIGHT
            )
        else:
            yield Demonstration(question=question, completion=question.answer)


def _called(call: dict[str, Any], answer: str) -> str:
    """A whole conversation behind the question: call, result, answer."""
    return f"<tool_call>{json.dumps(call)}</tool_call><|end|><|tool|>{answer}<|end|><|assistant|>{answer}"


def _question(first: int, sign: str, second: int) -> tuple[Question, str]:
    """A question as reasoning_gym words it, and the tool that answers it."""
    expression = f"{first} {sign} {second}"
    question = Question(
        text=f"State the final answer to the following arithmetic problem: {expression} =",
        answer=str(first + second if sign == "+" else first - second),
        content=expression,
        difficulty=2,
        metadata={"expression": expression},
    )
    return question, "add" if sign == "+" else "sub"


def _tell(step: int, loss: float) -> None:
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
