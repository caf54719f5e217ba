"""Conversations, and what a chat template writes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from agrpo.templates.recognising import PROBES, Probe

OWN = Path(__file__).parent / "own_texts.json"
"""What the families' own templates write of `CASES`: recorded from the files that their models carry."""

THOUGHT = "<think>\nA sum.\n</think>\n\n"
ASKED = {"role": "user", "content": "4 + 5?"}
SYSTEM = {"role": "system", "content": "Be brief."}
SAID = {"role": "assistant", "content": "It is 9."}
SCHEMA = PROBES["with tools"].schemas[0]


def calling(content: str, *arguments: Any) -> dict[str, Any]:
    calls = [
        {"id": f"call{place:05d}", "type": "function", "function": {"name": "look_up", "arguments": each}}
        for place, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "name": "look_up", "tool_call_id": "call00000"}


WORD = {"word": "quagga", "whole": True}
TEXT = '{"word": "quagga"}'
CASES = PROBES | {
    "thought and said": Probe(messages=[ASKED, {**SAID, "content": THOUGHT + "It is 9."}]),
    "said and called": Probe(messages=[SYSTEM, ASKED, calling("I look.", WORD), result("9")]),
    "thought, said, called": Probe(messages=[ASKED, calling(THOUGHT + "I look.", WORD), result("9")]),
    "two calls": Probe(messages=[ASKED, calling("", WORD, {"word": "é", "n": None}), result("9"), result("{}")]),
    "two calls in text": Probe(messages=[ASKED, calling("", TEXT, TEXT), result("9"), result("10")]),
    "answer": Probe(messages=[ASKED, calling("", WORD), result("9"), SAID]),
    "two rounds": Probe(messages=[ASKED, calling("", WORD), result("9"), calling("", WORD), result("9")]),
    "two rounds in text": Probe(messages=[ASKED, calling("", TEXT), result("9"), calling("", TEXT), result("9")]),
    "reasoning apart": Probe(messages=[ASKED, {**calling("", WORD), "reasoning_content": "A sum."}, result("9")]),
}


def written(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    schemas: Sequence[dict[str, Any]] = (),
    *,
    asks: bool = True,
    **keywords: Any,
) -> str:
    """As `apply_chat_template` writes it, with `<s>` for the token that begins a text."""
    how = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024", **keywords}
    tools = {"tools": list(schemas)} if schemas else {}
    texts, _ = render_jinja_template(
        [[dict(message) for message in messages]], chat_template=template, add_generation_prompt=asks, **tools, **how
    )
    return texts[0]


def own_texts() -> dict[str, Any]:
    return json.loads(OWN.read_text("utf-8"))


def random_conversation(draw: random.Random, *, thinks: bool) -> list[dict[str, Any]]:
    """Questions, and after each one some rounds of calls and results and an answer. `thinks`: each turn has a thought."""
    words = ["hello", " two  spaces ", "é\n", "4 + 5", "", '{"a": 1}', "</tool_response>", "it's"]
    messages: list[dict[str, Any]] = [SYSTEM] if draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 3)):
        messages.append({"role": "user", "content": draw.choice(words) + "?"})
        for _ in range(draw.randint(0, 3)):
            arguments = [
                {"word": draw.choice(words), "n": draw.choice([1, None, True, [1]])} for _ in range(draw.randint(1, 3))
            ]
            messages.append(calling(_turn(draw, words, thinks=thinks), *arguments))
            messages += [result(draw.choice(words)) for _ in arguments]
        messages.append({"role": "assistant", "content": _turn(draw, words, thinks=thinks)})
    return messages


def _turn(draw: random.Random, words: list[str], *, thinks: bool) -> str:
    thought = (
        draw.choice(["<think>\n", "<think>\n\n"]) + draw.choice(words) + draw.choice(["\n</think>\n\n", "</think>"])
    )
    return (thought if thinks else "") + draw.choice(words)


__all__ = ["CASES", "OWN", "own_texts", "random_conversation", "written"]
