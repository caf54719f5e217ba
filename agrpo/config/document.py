"""docs/settings.md, from the fields of tables and parts: `python -m agrpo.config.document docs/settings.md`.

Names, types, limits and defaults are what settings are checked by, meanings are the docstrings below the fields.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agrpo.config.run import ROOMS
from agrpo.config.sections import SECTIONS, FilterSection, RewardSection, SamplingSection
from agrpo.errors import UnknownName
from agrpo.registry import Registry, nearest

ORDER = (
    *("run", "model", "adapter", "prompts", "engine", "tools", "environments", "rollout_loop", "rewards", "filters"),
    *("step", "async", "optimizer", "advantage", "loss", "aggregation", "correction", "masks", "divergence", "entropy"),
    *("packing", "checkpoint", "resume", "workers", "stop", "recorder", "supervision", "store"),
)
"""Tables as the page has them."""
CHOSEN = {
    "prompts": "Where prompts come from.",
    "engine": "What samples completions. The settings that every engine shares:",
    "advantage": "How good a rollout was beside the others of its group.",
    "loss": "What a step minimises, token by token ([objectives.md](objectives.md)).",
    "aggregation": "How the losses of tokens become a step's.",
    "packing": "How samples lie in the rows that the learner reads ([packing.md](packing.md)).",
}
"""Tables that choose a part, and what for."""
LISTED: dict[str, type[Any]] = {"rewards": RewardSection, "filters": FilterSection}
"""Tables that may stand several times, each of which chooses a part."""
_ROW = "| `{name}` | {values} | {default} | {meaning} |"
_TABLE = "| setting | takes | default | |\n|---|---|---|---|"
_SHUFFLE = _ROW.format(
    name="shuffle", values="true or false", default="`true`", meaning="Each pass in another seeded order."
)
_HEAD = """\
# Settings

Every setting of a run's file, table by table: what it takes, its default, and what it means. This page is made from the code;
a test holds it to it. `agrpo settings` prints it, `agrpo settings engine` one table of it. `agrpo check run.toml` prints what a file
comes to, with where each value is from; `--set table.key=value` lays one over the file.

- `–` as a default: none is set. Where the meaning says "None: …", that is what then holds. TOML has no null: leave the line out.
- **required**: there is no default.
- A table with a `name` chooses a part: its own settings stand beside `name` in that table. Parts of other packages, found by their
  entry points, work alike and are not listed here.
- A run that goes on keeps its settings, but for those that [supervision.md](supervision.md#going-on) lists.

"""


def document() -> str:
    """The whole page."""
    links = " · ".join(f"[{name}](#{name})" for name in ORDER) + "\n"
    return "\n".join([_HEAD + links, *(table_document(name) for name in ORDER)])


def table_document(name: str) -> str:
    """One table of a run's file and every part that it can choose. Raises `UnknownName`."""
    if name not in ORDER:
        raise UnknownName(f'no table is called "{name}"; {nearest(name, list(ORDER))}')
    lines = [f"## {name}\n", *(_chosen(name) if name in ROOMS else _listed(name) if name in LISTED else _fixed(name))]
    return "\n".join(lines)


def _fixed(name: str) -> Iterator[str]:
    yield f"{_about(SECTIONS[name])}\n"
    yield f"{_settings(SECTIONS[name])}\n"


def _chosen(name: str) -> Iterator[str]:
    room, default = ROOMS[name]
    yield f"{CHOSEN[name]}\n"
    if name == "engine":
        yield f"{_settings(SamplingSection)}\n"
    if name == "prompts":
        yield f"{_TABLE}\n{_SHUFFLE}\n"
    yield from _parts(name, room, default)


def _listed(name: str) -> Iterator[str]:
    yield f"`[[{name}]]`, as often as there are {name}. {_about(LISTED[name])}\n"
    yield f"{_settings(LISTED[name])}\n"
    yield from _parts(name, f"agrpo.{name}", None)


def _parts(table: str, room: str, default: str | None) -> Iterator[str]:
    """Those of agrpo itself: what else is installed beside it is no matter of the page."""
    registry: Registry[Any] = Registry(room)
    for name in registry.names():
        part = registry[name]
        if not part.__module__.startswith("agrpo."):
            continue
        yield f'### {table}.name = "{name}"{", the default" if name == default else ""}\n'
        yield f"{_module_about(part)} {_about(part)}\n"
        if _schema(part)["properties"]:
            yield f"{_settings(part)}\n"
        else:
            yield "It has no settings.\n"


def _settings(part: type[Any]) -> str:
    schema = _schema(part)
    required = schema.get("required", [])
    rows = [
        _ROW.format(
            name=name,
            values=values_taken(field),
            default="**required**" if name in required else _default(part, name),
            meaning=_line(field.get("description", "")),
        )
        for name, field in schema["properties"].items()
    ]
    return "\n".join([_TABLE, *rows])


def _schema(part: type[Any]) -> dict[str, Any]:
    return {"properties": {}, **TypeAdapter(part).json_schema()}


def values_taken(field: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words: `a number above 0`."""
    if "anyOf" in field:
        return ", or ".join(values_taken(other) for other in field["anyOf"] if other.get("type") != "null")
    if "const" in field or "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field.get("enum", [field.get("const")]))
    if "prefixItems" in field:
        kinds = [values_taken(item) for item in field["prefixItems"]]
        return f"a list of {len(kinds)}, each {kinds[0]}"
    kind = field.get("type")
    if kind == "array":
        return f"a list, each {values_taken(field['items'])}"
    names = {"boolean": "true or false", "object": "a table", "string": "text"}
    return names[kind] if kind in names else _number(field)


def _number(field: Mapping[str, Any]) -> str:
    kind = "an integer" if field["type"] == "integer" else "a number"
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None:
        return f"{kind} from {least} to {most}"
    bounds = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "exclusiveMaximum": "below",
        "maximum": "of at most",
    }
    said = [f"{words} {field[key]}" for key, words in bounds.items() if key in field]
    return f"{kind} {' and '.join(said)}".strip()


def _default(part: type[Any], name: str) -> str:
    field = part.__pydantic_fields__[name]
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "–"
    return f"`{json.dumps(value)}`"


def _about(part: type[Any]) -> str:
    """The class's docstring, on one line."""
    return _line(inspect.cleandoc(part.__doc__ or ""))


def _module_about(part: type[Any]) -> str:
    """The first sentence of the page that defines the part."""
    module = sys.modules[part.__module__].__doc__ or ""
    return _line(inspect.cleandoc(module).partition("\n\n")[0])


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), "utf-8")
