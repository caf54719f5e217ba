"""Imports only go down, and each third party has one landlord.

    errors <- records <- config, coroutines, loading, log_line, registry, staleness, tensors,
    threads, visible, waiting <- rooms <- instruments, stages, recipes <- runs <- audit, resuming, quickstart <- flows, trainer, cli

A room is any other package of agrpo. An import under `TYPE_CHECKING` is free: it is gone when the program runs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agrpo.stages import KINDS

ROOT = Path(__file__).parent.parent

ROOMS = 3
LAYERS = {
    "errors": 0,
    "records": 1,
    "config": 2,
    "coroutines": 2,
    "loading": 2,
    "log_line": 2,
    "registry": 2,
    "staleness": 2,
    "tensors": 2,
    "threads": 2,
    "visible": 2,
    "waiting": 2,
    "instruments": 4,
    "stages": 4,
    "whatif": 4,
    "recipes": 4,
    "runs": 5,
    "audit": 6,
    "resuming": 6,
    "quickstart": 6,
    "cli": 7,
    "trainer": 7,
    "__main__": 7,
    "flows": 7,
}
NEIGHBOURS = {("environments", "tools"), ("rewards", "metrics"), ("rewards", "classifiers"), ("objective", "losses")}
"""Rooms, and the other room each may import."""

TORCH_ROOMS = {
    "policy",
    "packing",
    "losses",
    "objective",
    "aggregations",
    "metrics",
    "checkpoints",
    "weights",
    "engines",
    "classifiers",
}
LANDLORDS = {
    "prefect": {"flows", "cli"},
    "duckdb": {"database"},
    "fsspec": {"queue", "checkpoints", "weights", "prompts"},
    "torch": TORCH_ROOMS | {"quickstart", "tensors"},
    "vllm": {"engines", "weights"},
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One import statement's module, as a dotted name."""

    name: str
    line: int


def violations(root: Path) -> list[str]:
    """A sentence for every import below `root` that the layers forbid."""
    found: list[str] = []
    for path in sorted([*root.glob("agrpo/**/*.py"), *root.glob("flows/**/*.py")]):
        importer = path.relative_to(root).with_suffix("").parts
        for imported in dict.fromkeys(imports_of(path, root)):
            rule = broken_rule(importer, imported.name.split("."))
            if rule:
                where = f"{path.relative_to(root).as_posix()}:{imported.line}"
                found.append(f"{where} imports {imported.name}: {rule}")
    return found


def broken_rule(importer: tuple[str, ...], imported: list[str]) -> str | None:
    """The rule that this import breaks. `importer`: `("agrpo", "losses", "clip")`."""
    house = _home(importer)
    if imported[0] not in ("agrpo", "flows"):
        landlords = LANDLORDS.get(imported[0], {house})
        return None if house in landlords else f"only {', '.join(sorted(landlords))} may import {imported[0]}"
    other = _home(tuple(imported))
    return _stage_rule(importer, imported) if house == other else _layer_rule(house, other)


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    """The imports that run, at the top or inside a call. `from a import b` is `a.b` where that is a module of ours.

    `import agrpo` is left out: importing any page does it.
    """
    tree = ast.parse(path.read_text("utf-8"), str(path))
    unseen = {id(node) for block in ast.walk(tree) if _is_type_checking(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(name=alias.name, line=node.lineno) for alias in node.names if alias.name != "agrpo")
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, path.relative_to(root))
            for alias in node.names:
                inner = root.joinpath(*module.split("."), alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
                yield Import(name=f"{module}.{alias.name}" if is_module else module, line=node.lineno)


def _home(parts: tuple[str, ...]) -> str:
    """The room or page that a dotted name belongs to; the package's own page is the door above everything."""
    if parts[0] == "flows":
        return "flows"
    return "cli" if parts[1:] in ((), ("__init__",)) else parts[1]


def _layer_rule(house: str, other: str) -> str | None:
    mine, theirs = LAYERS.get(house, ROOMS), LAYERS.get(other, ROOMS)
    if theirs > mine:
        return f"imports only go down, and {other} lies above {house}"
    if theirs == mine == ROOMS and (house, other) not in NEIGHBOURS:
        return f"a room never imports another room ({house}, {other})"
    if theirs == mine == LAYERS["stages"]:
        return f"{house} and {other} stand side by side and never import one another"
    return None


def _stage_rule(importer: tuple[str, ...], imported: list[str]) -> str | None:
    if importer[:2] == ("agrpo", "stages") and imported[2:3] and imported[2] in KINDS:
        return "stages never import one another; they meet in the run's folder"
    return None


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _absolute(node: ast.ImportFrom, page: Path) -> str:
    if not node.level:
        return node.module or ""
    package = page.parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def test_imports_only_go_down():
    assert violations(ROOT) == []


def test_every_page_at_the_top_of_agrpo_has_a_layer():
    pages = {path.stem for path in (ROOT / "agrpo").glob("*.py")} - {"__init__"}
    assert pages <= LAYERS.keys()


@pytest.mark.parametrize(
    ("page", "text", "message"),
    [
        ("agrpo/errors.py", "import agrpo.registry", "1 imports agrpo.registry: imports only go down"),
        ("agrpo/records/group.py", "x = 1\nfrom agrpo import config", "2 imports agrpo.config: imports only go down"),
        ("agrpo/config.py", "def f():\n    from agrpo.losses import clip", "2 imports agrpo.losses.clip: imports only"),
        ("agrpo/losses/clip.py", "from agrpo.rewards import Reward", "1 imports agrpo.rewards: a room never imports"),
        ("agrpo/losses/clip.py", "from ..rewards import Reward", "1 imports agrpo.rewards: a room never imports"),
        ("agrpo/losses/clip.py", "from agrpo import connect", "1 imports agrpo: imports only go down"),
        ("agrpo/losses/clip.py", "import flows.train", "1 imports flows.train: imports only go down"),
        ("agrpo/stages/learner.py", "from agrpo.stages import scorer", "1 imports agrpo.stages.scorer: stages never"),
        ("agrpo/recipes/dapo.py", "import agrpo.stages.process", "1 imports agrpo.stages.process: recipes and stages"),
        ("agrpo/losses/clip.py", "import duckdb", "1 imports duckdb: only database may import duckdb"),
        ("agrpo/rewards/math.py", "import torch.nn as nn", "1 imports torch.nn: only aggregations, checkpoints"),
        (
            "agrpo/stages/learner.py",
            "from prefect import flow",
            "1 imports prefect: only cli, flows may import prefect",
        ),
    ],
)
def test_a_forbidden_import_is_found_with_its_place_and_its_rule(tmp_path, page, text, message):
    _write(tmp_path, "agrpo/config.py", "agrpo/losses/clip.py", "agrpo/stages/scorer.py")
    _write(tmp_path, page, text=text)
    (found,) = violations(tmp_path)
    assert found.startswith(f"{page}:{message}")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("agrpo/config.py", "if TYPE_CHECKING:\n    from agrpo.losses import Loss"),
        ("agrpo/losses/clip.py", "from agrpo.records.tokens import TokenLoss\nimport torch"),
        ("agrpo/losses/clip.py", "from agrpo.losses.terms import ratio"),
        ("agrpo/environments/retail.py", "from agrpo.tools import search"),
        ("agrpo/stages/learner.py", "from agrpo.stages import process, sampling"),
        ("agrpo/runs.py", "import agrpo\nfrom agrpo.queue.run_folder import RunFolder"),
        ("agrpo/trainer.py", "from flows.train import train"),
        ("flows/train.py", "from agrpo.stages.process import Supervisor\nimport prefect"),
    ],
)
def test_an_allowed_import_is_left_alone(tmp_path, page, text):
    _write(tmp_path, page, text=text)
    assert violations(tmp_path) == []


def test_import_agrpo_loads_no_heavy_package():
    heavy = {"torch", "transformers", "prefect", "vllm", "numpy", "pyarrow", "duckdb"}
    assert heavy & _modules_after("import agrpo") == set()


def test_no_part_pulls_in_torch_or_prefect_when_it_is_found():
    found = _modules_after(
        "import importlib, pathlib, pkgutil\n"
        "import agrpo\n"
        "for room in pkgutil.iter_modules(agrpo.__path__, 'agrpo.'):\n"
        "    page = pathlib.Path(agrpo.__path__[0], room.name.split('.')[1], '__init__.py')\n"
        "    if room.ispkg and f'Registry(\"{room.name}\")' in page.read_text('utf-8'):\n"
        "        for part in pkgutil.iter_modules(importlib.import_module(room.name).__path__, room.name + '.'):\n"
        "            if not part.ispkg:\n"
        "                importlib.import_module(part.name)"
    )
    assert "agrpo.losses.clip" in found
    assert {"torch", "transformers", "prefect", "vllm"} & found == set()


def _write(root: Path, *pages: str, text: str = "") -> None:
    for page in pages:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_text(text)


def _modules_after(program: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after `program`."""
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())
