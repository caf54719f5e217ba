from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agrpo.errors import PromptError
from agrpo.prompts import prompt_of
from agrpo.prompts.files import Files

ROWS = [
    {"prompt": [{"role": "user", "content": "2+3?"}], "answer": "5", "level": 1},
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}], "answer": "2", "level": 2},
]


def write_parquet(file: Path, rows: list[dict]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


def write_jsonl(file: Path, rows: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_json(file: Path, rows: list[dict]) -> Path:
    file.write_text(json.dumps(rows))
    return file


def write_csv(file: Path, rows: list[dict]) -> Path:
    cells = [[json.dumps(row["prompt"]), row["answer"], str(row["level"])] for row in rows]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
    file.write_text("\n".join(["prompt,answer,level", *quoted]))
    return file


WRITERS = {".parquet": write_parquet, ".jsonl": write_jsonl, ".json": write_json}


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_come_back_as_written(tmp_path: Path, kind: str):
    rows = Files(path=str(WRITERS[kind](tmp_path / f"prompts{kind}", ROWS)))()
    assert [rows[index] for index in range(len(rows))] == ROWS
    assert rows[-1] == ROWS[1]
    assert rows[0:2] == ROWS


def test_csv_holds_the_messages_as_json_and_numbers_as_numbers(tmp_path: Path):
    rows = Files(path=str(write_csv(tmp_path / "prompts.csv", ROWS)))()
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in ROWS]
    assert [row["level"] for row in rows] == [1, 2]


def test_a_dataset_saved_to_disk_is_read_back(tmp_path: Path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    rows = Files(path=str(tmp_path / "saved"))()
    assert [rows[index] for index in range(2)] == ROWS


@pytest.mark.parametrize("kind", WRITERS)
def test_a_glob_reads_its_files_in_the_order_of_their_names(tmp_path: Path, kind: str):
    WRITERS[kind](tmp_path / f"b{kind}", ROWS[1:])
    WRITERS[kind](tmp_path / f"a{kind}", ROWS[:1])
    rows = Files(path=str(tmp_path / f"*{kind}"))()
    assert [row["answer"] for row in rows] == ["5", "2"]


def test_a_glob_over_folders_named_like_partitions_adds_no_column(tmp_path: Path):
    (tmp_path / "split=train").mkdir()
    write_parquet(tmp_path / "split=train" / "part.parquet", ROWS)
    assert set(Files(path=str(tmp_path / "**" / "*.parquet"))()[0]) == {"prompt", "answer", "level"}


def test_files_with_other_columns_are_read_together_or_refused(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", ROWS[:1])
    write_parquet(tmp_path / "b.parquet", [{"prompt": ROWS[1]["prompt"], "hint": "two"}])
    rows = Files(path=str(tmp_path / "*.parquet"))()
    assert (rows[0]["hint"], rows[1]["hint"], rows[1]["answer"]) == (None, "two", None)
    write_parquet(tmp_path / "c.parquet", [{"prompt": "a text", "answer": "5"}])
    with pytest.raises(PromptError, match="columns do not fit each other"):
        Files(path=str(tmp_path / "*.parquet"))()


@pytest.mark.parametrize("name", ["absent.parquet", "absent/*.jsonl", "absent"])
def test_a_missing_file_is_named_with_the_folder_it_was_looked_for_in(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PromptError) as caught:
        Files(path=name)()
    assert f'prompts.path = "{name}"' in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_without_a_prompt_leave_it_to_an_environment(tmp_path: Path, kind: str):
    file = WRITERS[kind](tmp_path / f"prompts{kind}", [{"target": 5, "environment": "game"}])
    prompt = prompt_of(Files(path=str(file))()[0], row_index=0)
    assert (prompt.messages, prompt.facts, prompt.environment) == ([], {"target": 5}, "game")


@pytest.mark.spec("A-009")
@pytest.mark.parametrize("kind", WRITERS)
def test_a_text_for_a_prompt_is_refused_with_the_form_it_should_have(tmp_path: Path, kind: str):
    file = WRITERS[kind](tmp_path / f"prompts{kind}", [{"prompt": "2+3?", "answer": "5"}])
    with pytest.raises(
        PromptError, match=r"""str '2\+3\?'; expected a list of messages, such as \[\{"role": "user\""""
    ):
        Files(path=str(file))()


def test_a_text_for_a_prompt_in_csv_is_refused_with_its_row(tmp_path: Path):
    (tmp_path / "prompts.csv").write_text("prompt,answer\n2+3?,5\n")
    with pytest.raises(PromptError, match=r"row 0: the prompt is '2\+3\?'; in CSV it must hold the messages as JSON"):
        Files(path=str(tmp_path / "prompts.csv"))()


def test_files_without_rows_are_refused(tmp_path: Path):
    schema = pa.Table.from_pylist(ROWS).schema
    pq.write_table(schema.empty_table(), tmp_path / "none.parquet")
    (tmp_path / "none.jsonl").write_text("\n\n")
    (tmp_path / "none.json").write_text("[]")
    for kind in WRITERS:
        with pytest.raises(PromptError, match="has no rows; a run needs at least one prompt"):
            Files(path=str(tmp_path / f"none{kind}"))()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.jsonl", '{"prompt": []}\n{"prompt"', "bad.jsonl, line 2 is not JSON"),
        ("bad.jsonl", "[1]", "bad.jsonl, line 1 is a JSON list; expected an object"),
        ("bad.json", '{"data": []}', "bad.json holds a JSON dict; expected a list of rows"),
        ("bad.parquet", "not parquet", "cannot be read as Parquet"),
        ("bad.csv", "", "cannot be read as CSV"),
        ("bad.txt", "2+3?", r"files of kind .txt; expected one of .csv, .json, .jsonl, .parquet"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_place(tmp_path: Path, name: str, content: str, said: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(PromptError, match=said):
        Files(path=str(tmp_path / name))()


def test_a_folder_of_files_is_refused_with_the_glob_to_give(tmp_path: Path):
    write_parquet(tmp_path / "a.parquet", ROWS)
    with pytest.raises(PromptError, match=r"save_to_disk; for files in it give a glob, such as .*/\*\.parquet"):
        Files(path=str(tmp_path))()


def test_a_saved_folder_of_splits_is_refused_with_the_folder_of_each(tmp_path: Path):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(PromptError, match=r"several splits; give the folder of one: .*/saved/train"):
        Files(path=str(tmp_path / "saved"))()
