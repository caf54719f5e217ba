"""Which reader a model's calls need: as its tokenizer declares, as the run says, or as its chat template shows."""

from __future__ import annotations

from typing import Any, cast

from agrpo.errors import ToolError
from agrpo.tools.formats import CallFormat, ReadTurn, RequestedCall, called, deepseek, gemma, llama, mistral, tagged

FORMATS: dict[str, CallFormat] = {
    "tagged": tagged.read,
    "llama": llama.read,
    "deepseek": deepseek.read,
    "gemma": gemma.read,
    "mistral": mistral.read,
}
"""By `tools.call_format`."""

_MARKERS = {
    tagged.OPENED: "tagged",
    deepseek.BEGIN: "deepseek",
    gemma.OPENED: "gemma",
    mistral.BEGIN: "mistral",
    "<|start_header_id|>": "llama",
}
"""In the order in which they are looked for: a template that shows a marker writes its calls so."""


_REASONING = ("reasoning_content", "thinking", "reasoning")
"""What tokenizers call it."""


def format_of(tokenizer: Any, asked: str | None, *, prefix: str, schemas: list[dict[str, Any]]) -> CallFormat:
    """The reader for a tokenizer whose template takes tools. `prefix`: what the template writes before the model does.

    Raises `ToolError` where nothing says how the calls are written.
    """
    if asked is not None:
        return FORMATS[asked]
    if getattr(tokenizer, "response_template", None) is not None:
        return lambda text, /, *, thinking=False: _declared(tokenizer, text, prefix, schemas)
    template = tokenizer.get_chat_template(tools=schemas)
    for marker, name in _MARKERS.items():
        if marker in template:
            return FORMATS[name]
    raise ToolError(
        "the model's chat template takes tools and shows none of the ways to write a call that agrpo reads "
        f"({', '.join(_MARKERS)}), and its tokenizer declares no response template; set tools.call_format to one of "
        f"{', '.join(FORMATS)}, or take another model"
    )


def _declared(tokenizer: Any, text: str, prefix: str, schemas: list[dict[str, Any]]) -> ReadTurn:
    """By transformers' own reading, which raises where the text does not fit the declaration."""
    try:
        message: dict[str, Any] = tokenizer.parse_response(text, prefix=prefix, tools=schemas)
        found = cast("list[Any]", message.get("tool_calls") or [])
    except Exception as error:
        problem = f"this answer cannot be read as the model's tokenizer declares: {type(error).__name__}: {error}"
        return ReadTurn(content=text, calls=[RequestedCall(problem=problem)])
    calls = [called(call.get("function", call) if isinstance(call, dict) else call, text) for call in found]
    reasoning = next((message[name] for name in _REASONING if isinstance(message.get(name), str)), "")
    return ReadTurn(content=str(message.get("content") or "") if calls else text, calls=calls, reasoning=reasoning)
