"""A run as Parquet: the same rows for DuckDB, Polars and datasets, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pytest
from typer.testing import CliRunner

from agrpo.cli import app
from agrpo.database.export import EXPORTS, export
from agrpo.database.queries import query
from agrpo.database.schema import create_all
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_group, add_scores, small_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = small_run(tmp_path / "run")
    record_once(folder, Database(folder.database))
    return folder


def test_duckdb_polars_and_datasets_read_every_file_alike(run: RunFolder, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import load_dataset

    files = export(run, tmp_path / "out")
    assert [file.path.stem for file in files] == list(EXPORTS)
    for file in files:
        expected = query(run, f"SELECT * FROM {EXPORTS[file.path.stem]}")
        read = duckdb.sql(f"FROM '{file.path}'")
        frame = polars.read_parquet(file.path)
        loaded = load_dataset(
            "parquet", data_files=str(file.path), split="train", cache_dir=str(tmp_path / "hf" / file.path.stem)
        )
        assert read.columns == frame.columns == loaded.column_names == expected.column_names
        assert len(read.fetchall()) == len(frame) == len(loaded) == len(expected) == file.num_rows > 0
    tokens = polars.read_parquet(tmp_path / "out" / "tokens.parquet")
    assert tokens.filter(ticket=0, rollout_index=1)["token_id"].to_list() == [4, 1]
    rollouts = polars.read_parquet(tmp_path / "out" / "rollouts.parquet")
    assert rollouts.sort("ticket", "rollout_index")["reward"].to_list() == [1.0, 0.0] * 4


def test_rows_are_in_the_order_of_their_tickets(run: RunFolder, tmp_path: Path):
    export(run, tmp_path / "out", ["turns", "settings"])
    turns = polars.read_parquet(tmp_path / "out" / "turns.parquet")
    assert turns.select("ticket", "rollout_index").rows() == [
        (ticket, index) for ticket in range(4) for index in (0, 1)
    ]


def test_the_command_writes_what_is_asked_for(run: RunFolder, tmp_path: Path):
    asked = ["export", str(run.database.parent), str(tmp_path / "out"), "--what", "rollouts,metrics"]
    told = CliRunner().invoke(app, asked)
    assert (told.exit_code, told.output.count("rows")) == (0, 2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "metrics.parquet",
        "rollouts.parquet",
    ]
    assert isinstance(CliRunner().invoke(app, asked).exception, DatabaseError)


def test_the_card_names_the_run_its_files_and_every_column(run: RunFolder, tmp_path: Path):
    export(run, tmp_path / "out", ["metrics", "rollouts"])
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert card.startswith("---\nconfigs:\n- config_name: rollouts\n  data_files: rollouts.parquet\n")
    assert "# small" in card
    assert "8 rows of `rollouts_with_rewards`" in card
    for file in ("rollouts", "metrics"):
        for column in polars.read_parquet(tmp_path / "out" / f"{file}.parquet").columns:
            assert f"| `{column}` |" in card


def test_a_folder_with_something_in_it_is_replaced_only_on_demand(run: RunFolder, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export(run, tmp_path / "out", ["metrics"])
    with pytest.raises(DatabaseError, match=r"out holds an export already; .*--overwrite"):
        export(run, tmp_path / "out", ["steps"])
    export(run, tmp_path / "out", ["steps"], overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "steps.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_an_export_that_fails_leaves_the_old_one_and_no_rest(run: RunFolder, tmp_path: Path):
    export(run, tmp_path / "out", ["metrics"])
    with duckdb.connect(str(run.database)) as connection:
        connection.execute("DROP VIEW live_steps CASCADE")
    with pytest.raises(DatabaseError):
        export(run, tmp_path / "out", ["metrics", "steps"], overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "metrics.parquet"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_unknown_name_is_refused_with_the_nearest(run: RunFolder, tmp_path: Path):
    with pytest.raises(DatabaseError, match="'token' cannot be exported; did you mean tokens"):
        export(run, tmp_path / "out", ["token"])
    assert not (tmp_path / "out").exists()


def test_an_export_between_two_recordings_holds_what_was_there(run: RunFolder, tmp_path: Path):
    (before,) = export(run, tmp_path / "before", ["rollouts"])
    add_group(run, 4)
    add_scores(run, 4)
    record_once(run, Database(run.database))
    (after,) = export(run, tmp_path / "after", ["rollouts"])
    assert (before.num_rows, after.num_rows) == (8, 10)


def test_a_large_file_is_cut_into_row_groups(run: RunFolder, tmp_path: Path):
    with duckdb.connect(str(run.database)) as connection:
        connection.execute("INSERT INTO metrics SELECT 0, 1, 'made_up', i FROM range(250_000) t(i)")
    (file,) = export(run, tmp_path / "out", ["metrics"])
    groups = duckdb.sql(f"SELECT max(row_group_num_rows) FROM parquet_metadata('{file.path}')").fetchall()
    assert groups[0][0] <= 130_000


def test_every_export_is_a_table_or_view_of_the_schema():
    with duckdb.connect() as connection:
        create_all(connection)
        known = {name for (name,) in connection.execute("SELECT relation FROM schema_relations").fetchall()}
    assert {*EXPORTS.values()} <= known


@pytest.mark.parametrize("place", ["run", ".", "run/weights", "run.toml", "notes"])
def test_nothing_but_an_export_is_ever_replaced(run: RunFolder, tmp_path: Path, place: str):
    (tmp_path / "run.toml").write_text("[run]")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("mine")
    (tmp_path / "run" / "weights").mkdir(exist_ok=True)
    (tmp_path / "run" / "weights" / "x").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DatabaseError, match="is there and is no export; name a new folder"):
        export(run, tmp_path / place, ["steps"], overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_with_a_file_of_ones_own_in_it_is_not_replaced(run: RunFolder, tmp_path: Path):
    export(run, tmp_path / "out", ["steps"])
    (tmp_path / "out" / "thesis.md").write_text("years of work")
    with pytest.raises(DatabaseError, match="is no export"):
        export(run, tmp_path / "out", ["steps"], overwrite=True)


def test_a_place_that_cannot_be_written_is_said(run: RunFolder):
    with pytest.raises(DatabaseError, match="cannot be written"):
        export(run, Path("/proc/exported"), ["steps"])
