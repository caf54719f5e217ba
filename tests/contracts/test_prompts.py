"""What every prompt source promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from agrpo.prompts import PromptOrder, Source, sources

ROWS = [{"prompt": [{"role": "user", "content": f"{number}+1?"}], "answer": str(number + 1)} for number in range(5)]
EACH = pytest.mark.parametrize("name", sources.names())


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Knobs with which each source has five rows here. A new source adds its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "environment": {"size": 5, "names": ["maze", "game"]},
        "files": {"path": str(tmp_path / "data" / "train.jsonl")},
        "hub": {"path": str(tmp_path / "data")},
        "reasoning_gym": {"dataset": "chain_sum", "size": 5, "seed": 3},
    }


def made(name: str, settings: dict[str, dict[str, Any]]) -> Source:
    return sources.build(name, settings[name])


@EACH
def test_rows_are_read_by_index_any_number_of_times(name: str, settings: dict[str, dict[str, Any]]):
    rows = made(name, settings)()
    assert len(rows) == 5
    assert [rows[index] for index in (4, 0, 4)] == [rows[4], rows[0], rows[4]]
    assert len({json.dumps(rows[index]) for index in range(5)}) == 5


@EACH
def test_a_second_call_gives_the_same_rows(name: str, settings: dict[str, dict[str, Any]]):
    first, second = (made(name, settings)() for _ in range(2))
    assert [first[index] for index in range(5)] == [second[index] for index in range(5)]


@EACH
def test_every_row_is_a_prompt_whose_facts_are_plain_values(name: str, settings: dict[str, dict[str, Any]]):
    order = PromptOrder(made(name, settings)(), seed=1, shuffle=True)
    prompts = [order.prompt(number) for number in range(5)]
    assert len({prompt.id for prompt in prompts}) == 5
    for prompt in prompts:
        assert prompt.facts
        assert json.loads(json.dumps(prompt.facts)) == prompt.facts
