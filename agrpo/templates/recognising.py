"""Which family a chat template belongs to, found out by what it writes where it does not rewrite.

Small conversations are written by both: a template is taken for a family's where each comes out to the last character as
by the one for training. So one that only looks like a family's is not taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agrpo.templates import template

Write = Callable[["Probe", str | None], str | None]
"""What a template writes of a probe, up to where the model is to answer: the model's own (None), or one given as text. None:
it cannot write it."""

_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a word.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "The word."},
                "whole": {"type": "boolean", "description": "Alone."},
            },
            "required": ["word"],
        },
    },
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_ASKED = {"role": "user", "content": "What is a quagga?"}
_SAID = {"role": "assistant", "content": "An animal."}
_RESULT = {"role": "tool", "name": "look_up", "tool_call_id": "call00000", "content": "a kind of zebra"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A conversation in which a model is to answer."""

    messages: Sequence[Mapping[str, Any]]
    shows_tools: bool = False

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Tools that the template is given."""
        return [_SCHEMA] if self.shows_tools else []


def _calling(content: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


_ARGUMENTS = {"word": "quagga", "whole": True}
PROBES = {
    "asked": Probe(messages=[_ASKED]),
    "in a system": Probe(messages=[_SYSTEM, _ASKED]),
    "with tools": Probe(messages=[_SYSTEM, _ASKED], shows_tools=True),
    "said": Probe(messages=[_ASKED, _SAID, _ASKED]),
    "answered": Probe(messages=[_ASKED, _SAID, _RESULT, _RESULT]),
    "called": Probe(messages=[_ASKED, _calling("", _ARGUMENTS), _RESULT], shows_tools=True),
    "thought": Probe(messages=[_ASKED, _calling("<think>\nHm.\n</think>", _ARGUMENTS), _RESULT], shows_tools=True),
    "called in text": Probe(messages=[_ASKED, _calling("", '{"word": "quagga"}'), _RESULT, _RESULT]),
}

_THINKERS = ("asked", "in a system", "with tools", "thought")
_WITHOUT_TOOLS = ("asked", "in a system", "said")
ALIKE = {
    "qwen3_training": _THINKERS,
    "qwen3_thinking_training": _THINKERS,
    "qwen3_5_training": _THINKERS,
    "qwen3_5_nothink_training": ("asked", "in a system", "with tools", "called"),
    "qwen3_6_training": _THINKERS,
    "deepseek_r1_training": ("asked", "in a system", "answered", "called in text"),
    "deepseek_r1_distill_training": ("asked", "in a system", "answered"),
    "deepseek_v3_1_training": ("asked", "in a system", "answered", "called in text"),
    "llama3_training": ("asked", "in a system", "with tools", "called"),
    "smollm2_training": _WITHOUT_TOOLS,
    "gemma3_training": _WITHOUT_TOOLS,
}
"""Probes of which a family's own template and the one for training write the same."""


def training_template_of(write: Write) -> str | None:
    """The template for training that the model's own may be exchanged for. None: the family is not known."""
    own = {name: write(probe, None) for name, probe in PROBES.items()}
    for name, alike in ALIKE.items():
        if all(own[probe] is not None and own[probe] == write(PROBES[probe], template(name)) for probe in alike):
            return name
    return None


__all__ = ["ALIKE", "PROBES", "Probe", "Write", "training_template_of"]
