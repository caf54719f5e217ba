"""What holds for the repository as a whole: nothing of one machine in it, pages of a readable size, declared packages."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LONGEST_PAGE = 400
LONGEST_FUNCTION = 60

ONE_MACHINE = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users)/")
INDEX_HOST = re.compile(r"\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|--(?:extra-)?index-url|--find[-]links")


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and text of every text file that git holds."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True, timeout=60)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            yield name, path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def pages() -> list[Path]:
    return sorted([*ROOT.glob("agrpo/**/*.py"), *ROOT.glob("flows/**/*.py")])


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_one_machine():
    assert lines_matching(ONE_MACHINE) == []


def test_no_file_names_a_package_index():
    assert lines_matching(INDEX_HOST) == []


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        (ONE_MACHINE, "see " + "/root" + "/notes.txt", True),
        (ONE_MACHINE, 'open("' + "/home" + '/me/model")', True),
        (ONE_MACHINE, "s3://bucket/work/run and ./work/run", False),
        (INDEX_HOST, "pip install --extra-index" + "-url https://example.org torch", True),
        (INDEX_HOST, "pip install torch", False),
    ],
)
def test_the_patterns_find_what_they_forbid(pattern, line, matches):
    assert bool(pattern.search(line)) is matches


def test_no_page_is_longer_than_one_can_read():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in pages()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_PAGE} == {}


def test_no_function_is_longer_than_a_screen():
    lengths = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in pages()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_every_package_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    declared = {_plain(re.split(r"[<>=\[ ]", name)[0]) for name in [*project["dependencies"], *extras]}
    undeclared = {module for module in _third_parties() if not _providers(module) & declared}
    assert undeclared == set()


def _third_parties() -> set[str]:
    named: set[str] = set()
    for path in pages():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                named.add(node.module.partition(".")[0])
    return named - sys.stdlib_module_names - {"agrpo", "flows"}


def _providers(module: str) -> set[str]:
    """Names under which a module's package may be declared; its own name where it is not installed."""
    return {_plain(name) for name in _installed().get(module, [module])}


_installed = functools.cache(packages_distributions)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
