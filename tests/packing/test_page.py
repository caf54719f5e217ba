"""docs/packing.md: its example runs, and it says what to read when training is slow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agrpo.packing.tree import Tree

PAGE = (Path(__file__).parents[2] / "docs" / "packing.md").read_text("utf-8")


def numbers_of(name: str) -> list[int]:
    found = re.search(rf"^{name} +((?:-?\d+ +)+(?:-?\d+))", PAGE, re.MULTILINE)
    assert found, name
    return [int(number) for number in found[1].split()]


def test_the_example_in_python_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {"__name__": "page"})


@pytest.mark.spec("A-148", "A-149")
def test_the_drawing_is_the_row_of_the_example():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {"__name__": "page"}
    exec(block, found)
    row = found["row"]
    assert numbers_of("place") == list(range(row.num_tokens))
    assert numbers_of("position") == row.positions.tolist()
    assert numbers_of("parent") == row.parents.tolist()


@pytest.mark.spec("A-163", "A-164")
def test_the_page_says_what_to_judge_packing_by_and_when_to_raise_the_budget():
    told = " ".join(PAGE.split())
    assert "Judge packing by `batch/trained_tokens_per_step` over `perf/fwd_bwd_s`" in told
    assert "A longer `perf/fwd_bwd_s`, or a lower `perf/fwd_bwd_mfu`, is no regression by itself" in told
    assert "`batch/samples_per_row` near 1: a row has nothing to share. Raise `step.micro_tokens`" in told
    assert "long samples fill rows badly, short ones almost fully" in told


def test_the_page_names_every_knob_and_its_default():
    assert f"`packing.max_gathered` × `step.micro_tokens` ({Tree().max_gathered:g})" in PAGE
