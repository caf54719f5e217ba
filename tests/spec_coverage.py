"""Which rows of docs/spec the tests claim: read from the documents and from the tests' source, running neither.

    python tests/spec_coverage.py [--format text|json]

Exits with 1 where a test claims an id that no document holds, or one that is not a literal string.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("async_grpo.md", "grpo.md", "papers.md", "cases.md")

_ROW = re.compile(r"^\|\s*\**([AGP]-\d{3}(?:\.\w+)?)\**\s*\|")
_CASE = re.compile(r"^### (K\d{2}) ")
_RANGE = re.compile(r"^([AGP]-|K)(\d+)\.\.\1(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An id, or a range of ids, that a test names, and where."""

    spec_id: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """`documents`: the ids of each, sorted. `places`: where each claimed id is claimed."""

    documents: dict[str, list[str]]
    places: dict[str, list[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def unclaimed(self, document: str) -> list[str]:
        return [spec_id for spec_id in self.documents[document] if spec_id not in self.places]


def coverage(spec: Path, tests: Path) -> Coverage:
    """What the tests below `tests` claim of the documents in `spec`."""
    found = Coverage(documents={name: ids_of((spec / name).read_text("utf-8")) for name in DOCUMENTS})
    for path in sorted(tests.rglob("*.py")):
        for claim in claims_of(path, path.relative_to(tests.parent).as_posix()):
            if isinstance(claim, str):
                found.problems.append(claim)
                continue
            ids = _expand(claim.spec_id, found.documents)
            if not ids:
                found.problems.append(f"{claim.place}: no document holds {claim.spec_id}")
            for spec_id in ids:
                found.places.setdefault(spec_id, []).append(claim.place)
    return found


def ids_of(text: str) -> list[str]:
    """The ids of a document's rows and headings, each once, sorted."""
    matches = (_ROW.match(line) or _CASE.match(line) for line in text.splitlines())
    return sorted({match.group(1) for match in matches if match})


def claims_of(path: Path, name: str) -> Iterator[Claim | str]:
    """The claims of a test module: marks on functions, on the module and in parameters. A problem is a sentence."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if not (isinstance(node, ast.Call) and _is_spec_mark(node.func)):
            continue
        place = f"{name}:{node.lineno}"
        if not node.args:
            yield f"{place}: pytest.mark.spec names no id"
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Claim(spec_id=argument.value, place=place)
            else:
                yield f"{place}: {ast.unparse(argument)} is not a literal id; write the ids out, or a range"


def folded(ids: list[str], document: list[str]) -> list[str]:
    """`ids` with each run of three and more neighbours of `document` written as a range."""
    runs: list[list[str]] = []
    for spec_id in ids:
        follows = runs and document.index(spec_id) == document.index(runs[-1][-1]) + 1
        runs[-1].append(spec_id) if follows else runs.append([spec_id])
    return [word for run in runs for word in ([f"{run[0]}..{run[-1]}"] if len(run) > 2 else run)]


def as_text(found: Coverage) -> str:
    """A line per document, and under it the ids that no test names."""
    lines: list[str] = []
    for name, ids in found.documents.items():
        missing = found.unclaimed(name)
        lines.append(f"{name:14} {len(ids) - len(missing):4} of {len(ids)} rows claimed by a test")
        if missing:
            words = "unclaimed: " + " ".join(folded(missing, ids))
            lines += textwrap.wrap(words, 116, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def as_json(found: Coverage) -> str:
    """Per document its rows, the places that claim each, and the rows without one."""
    documents = {
        name: {
            "rows": len(ids),
            "claimed": {spec_id: found.places[spec_id] for spec_id in ids if spec_id in found.places},
            "unclaimed": found.unclaimed(name),
        }
        for name, ids in found.documents.items()
    }
    return json.dumps({"documents": documents, "problems": found.problems}, indent=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--format", choices=("text", "json"), default="text")
    found = coverage(ROOT / "docs" / "spec", ROOT / "tests")
    print(as_json(found) if parser.parse_args().format == "json" else as_text(found))
    for problem in found.problems:
        print(problem, file=sys.stderr)
    return 1 if found.problems else 0


def _is_spec_mark(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "spec"
        and (
            (isinstance(node.value, ast.Attribute) and node.value.attr == "mark")
            or (isinstance(node.value, ast.Name) and node.value.id == "mark")
        )
    )


def _expand(words: str, documents: dict[str, list[str]]) -> list[str]:
    """The ids that `A-042`, or `A-042..A-087`, stands for; none where an end of it is no row."""
    known = {spec_id for ids in documents.values() for spec_id in ids}
    match = _RANGE.match(words)
    if match is None:
        return [words] if words in known else []
    prefix, first, last = match.groups()
    if not {f"{prefix}{first}", f"{prefix}{last}"} <= known:
        return []
    wanted = {f"{prefix}{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)}
    return [spec_id for ids in documents.values() for spec_id in ids if spec_id in wanted]


if __name__ == "__main__":
    sys.exit(main())
