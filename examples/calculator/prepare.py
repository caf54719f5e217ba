"""Makes a tiny model that can call the calculator and seldom does, and the sums to ask it. A minute or two on one core.

    python -m examples.calculator.prepare             into runs/start/calculator
    python -m examples.calculator.prepare --seed 2 --to runs/start/calculator-2

The warm start shows sums answered in two ways: with a call of `add` or `sub`, or at once. What the calls look like it learns
well. How often it begins with one is our choice, SHARE_STARTED_CALLING, and what the run is there to change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from agrpo.quickstart.question import Demonstration, Part, Question
from agrpo.tools.functions import tool_of
from examples.calculator.calculator import add, sub
from examples.start import Start, command

LOWEST, HIGHEST = 10, 999
NUM_PROMPTS = 4000
SHARE_CALLING = 0.7
"""Of the demonstrations."""
SHARE_STARTED_CALLING = 0.2
"""How often the warm start shall begin with a call, far below how often it is shown calling."""

_ODDS = SHARE_STARTED_CALLING / (1 - SHARE_STARTED_CALLING)
FIRST_TOKEN_WEIGHT = _ODDS * (1 - SHARE_CALLING) / SHARE_CALLING
SCHEMAS = tuple(tool_of(function, function.__name__).schema for function in (add, sub))


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """Sums answered with a call or at once, without end."""
    rng = random.Random(f"calculator/demonstrations/{seed}")
    while True:
        question = _drawn(rng, Part.WARM_START)
        if rng.random() < SHARE_CALLING:
            yield Demonstration(
                question=question,
                before=_called(question),
                completion=question.answer,
                schemas=SCHEMAS,
                first_token_weight=FIRST_TOKEN_WEIGHT,
            )
        else:
            yield Demonstration(question=question, completion=question.answer, schemas=SCHEMAS)


def rows(seed: int) -> list[dict[str, Any]]:
    """Sums of the run, none of which the warm start shows."""
    rng = random.Random(f"calculator/prompts/{seed}")
    questions = [_drawn(rng, Part.TRAINING) for _ in range(NUM_PROMPTS)]
    return [{"prompt": question.messages, "answer": question.answer} for question in questions]


def _drawn(rng: random.Random, part: Part) -> Question:
    while True:
        a, b, sign = rng.randint(LOWEST, HIGHEST), rng.randint(LOWEST, HIGHEST), rng.choice("+-")
        question = Question(
            text=f"What is {a} {sign} {b}?",
            answer=str(a + b if sign == "+" else a - b),
            content=f"{a} {sign} {b}" if sign == "-" else f"{min(a, b)} + {max(a, b)}",
            difficulty=2,
            metadata={"a": a, "b": b, "sign": sign},
        )
        if question.part is part:
            return question


def _called(question: Question) -> tuple[dict[str, Any], ...]:
    """The call that answers it, and its result."""
    name = "add" if question.metadata["sign"] == "+" else "sub"
    arguments = {"a": question.metadata["a"], "b": question.metadata["b"]}
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": question.answer},
    )


START = Start(name="calculator", demonstrations=demonstrations, rows=rows, steps=300)

if __name__ == "__main__":
    command(START, __doc__)
