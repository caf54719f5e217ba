from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from agrpo.errors import PromptError
from agrpo.prompts import prompt_of
from agrpo.prompts.hub import Hub

ROWS = [{"prompt": [{"role": "user", "content": f"{number}+1?"}], "answer": str(number + 1)} for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "data"


def test_a_split_is_read_by_index(folder: Path):
    rows = Hub(path=str(folder))()
    assert [rows[index] for index in range(len(rows))] == ROWS


def test_part_of_a_split_can_be_taken(folder: Path):
    assert [row["answer"] for row in Hub(path=str(folder), split="train[1:3]")()] == ["2", "3"]


def test_an_absent_split_is_named_with_the_ones_there_are(folder: Path):
    with pytest.raises(PromptError, match=r'split "validation" cannot be loaded: .*validation') as caught:
        Hub(path=str(folder), split="validation")()
    assert "train" in str(caught.value)


def test_a_dataset_never_downloaded_is_refused_offline_with_what_to_do(folder: Path):
    with pytest.raises(PromptError) as caught:
        Hub(path="agrpo-tests/absent", config="main", revision="v1")()
    assert str(caught.value).startswith('dataset "agrpo-tests/absent", config "main", split "train", revision "v1"')
    assert "HF_HUB_OFFLINE is set" in str(caught.value)


def test_rows_without_a_prompt_leave_it_to_an_environment(folder: Path):
    (folder / "train.jsonl").write_text('{"environment": "game"}\n')
    prompt = prompt_of(Hub(path=str(folder))()[0], row_index=0)
    assert (prompt.messages, prompt.facts, prompt.environment) == ([], {}, "game")
