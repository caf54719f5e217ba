"""Chat templates for training, which only ever append: a turn is written as it was said, wherever in a conversation it stands.

Families whose own template rewrites earlier turns (leaves out thoughts, trims, drops calls) have one here.
Where the family's own does not rewrite, both write the same text: tests hold it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from agrpo.errors import ModelError
from agrpo.registry import nearest

SHOWN_IN_SYSTEM = """\
You can call tools. To call one, write a JSON object with its name and its arguments between <tool_call> and </tool_call>, \
then end your turn:
<tool_call>
{{"name": "a tool", "arguments": {{"an argument": "its value"}}}}
</tool_call>
The result comes back to you before you go on. The tools, as JSON schemas:
<tools>
{tools}
</tools>"""
"""What the system message says of tools, where a model's own template does not show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of a family's templates: the page that writes for it, and what is set at its beginning."""

    page: str
    sets: tuple[tuple[str, object], ...] = ()


_TOLD = tuple(
    zip(("told_before_tools", "told_after_tools"), SHOWN_IN_SYSTEM.format(tools="\0").split("\0"), strict=True)
)
_VARIANTS = {
    "qwen3_training": Variant(page="qwen3", sets=(("always_thinks", False),)),
    "qwen3_thinking_training": Variant(page="qwen3", sets=(("always_thinks", True),)),
    "qwen3_5_training": Variant(page="qwen3_5", sets=(("thinks_by_default", True), ("scalars_are_python", True))),
    "qwen3_5_nothink_training": Variant(
        page="qwen3_5", sets=(("thinks_by_default", False), ("scalars_are_python", True))
    ),
    "qwen3_6_training": Variant(page="qwen3_5", sets=(("thinks_by_default", True), ("scalars_are_python", False))),
    "deepseek_r1_training": Variant(
        page="deepseek_r1", sets=(("between_outputs", ""), ("last_system_alone", False), *_TOLD)
    ),
    "deepseek_r1_distill_training": Variant(
        page="deepseek_r1", sets=(("between_outputs", "\n"), ("last_system_alone", True), *_TOLD)
    ),
    "deepseek_v3_1_training": Variant(page="deepseek_v3_1", sets=_TOLD),
    "llama3_training": Variant(page="llama3"),
    "smollm2_training": Variant(page="smollm2", sets=_TOLD),
    "gemma3_training": Variant(page="gemma3", sets=_TOLD),
}

TEMPLATES = tuple(_VARIANTS)
"""By `model.chat_template`."""


@cache
def template(name: str) -> str:
    """The text of one of `TEMPLATES`."""
    variant = _VARIANTS[name]
    page = files(__name__).joinpath(f"{variant.page}.jinja").read_text("utf-8")
    sets = (f"{{%- set {key} = {json.dumps(value)} -%}}\n" for key, value in variant.sets)
    return "".join(sets) + page


def template_at(name: str) -> str:
    """The text of `model.chat_template`: one of `TEMPLATES`, or a file. Raises `ModelError`."""
    if name in _VARIANTS:
        return template(name)
    try:
        return Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ModelError(
            f'model.chat_template: "{name}" is no file that can be read ({reason}), and no template of agrpo; '
            f"{nearest(name, list(TEMPLATES))}"
        ) from None


__all__ = ["SHOWN_IN_SYSTEM", "TEMPLATES", "template", "template_at"]
