"""Recovery checkpoints: the two newest whole ones of the history stay, and a learner begins at the newest that verifies."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.errors import CheckpointMismatch
from agrpo.queue.checkpoints import lineage_checkpoints, manifest_of
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Base
from tests.checkpoints.keepers import Kept, events_of, join, keep, new_run, state_at


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path / "run")


def damage(folder: RunFolder, name: str, file: str = "optimizer.safetensors") -> None:
    path = Path(folder.url, "checkpoints", name, file)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def written(folder: RunFolder, model: Path, last: int) -> Kept:
    kept = keep(folder, model)
    for step in range(last + 1):
        kept.checkpoint(step)
    return kept


def test_the_two_newest_stay_and_never_three_are_there(folder: RunFolder, tiny_model: Path):
    kept = keep(folder, tiny_model)
    found = []
    for step in range(4):
        kept.checkpoint(step)
        found.append(kept.checkpoints())
    assert found[0] == ["00000000-000000"]
    assert found[3] == ["00000002-000000", "00000003-000000"]
    assert max(len(names) for names in found) == 2


def test_what_a_checkpoint_knows_is_read_without_its_tensors(folder: RunFolder, tiny_model: Path):
    kept = written(folder, tiny_model, 1)
    newest, older = lineage_checkpoints(folder)
    manifest = manifest_of(folder, newest)
    assert (newest.step, older.step) == (1, 0)
    assert manifest.state == state_at(1, 0, kept.keeper.digest())
    assert manifest.run.name == "sums"


def test_a_damaged_newest_one_is_passed_over_by_name_and_the_older_loaded(folder: RunFolder, tiny_model: Path):
    written(folder, tiny_model, 2)
    damage(folder, "00000002-000000")
    join(folder, Base(attempt=1, parent=0, base_step=2, adopted_through=2))
    resumed = keep(folder, tiny_model, attempt=1)
    state = resumed.keeper.load_checkpoint(2)
    assert state.step == 1
    assert resumed.keeper.digest() == state.digest
    (skipped,) = events_of(folder, 1, "checkpoint_skipped")
    assert skipped.payload["folder"] == "checkpoints/00000002-000000"
    assert "optimizer.safetensors" in skipped.payload["reason"]


def test_a_whole_one_outlives_newer_damaged_ones(folder: RunFolder, tiny_model: Path):
    written(folder, tiny_model, 2)
    damage(folder, "00000002-000000")
    join(folder, Base(attempt=1, parent=0, base_step=2, adopted_through=2))
    resumed = keep(folder, tiny_model, attempt=1)
    resumed.checkpoint(3)
    assert resumed.checkpoints() == ["00000001-000000", "00000003-000001"]


def test_nothing_is_removed_before_the_history_has_two_whole_ones(folder: RunFolder, tiny_model: Path):
    written(folder, tiny_model, 2)
    damage(folder, "00000001-000000")
    damage(folder, "00000002-000000", "MANIFEST.json")
    join(folder, Base(attempt=1, parent=0, base_step=2, adopted_through=2))
    resumed = keep(folder, tiny_model, attempt=1)
    assert resumed.keeper.load_checkpoint(2) is None
    resumed.checkpoint(3)
    assert resumed.checkpoints() == ["00000001-000000", "00000002-000000", "00000003-000001"]
    resumed.checkpoint(4)
    assert resumed.checkpoints() == ["00000003-000001", "00000004-000001"]


def test_those_of_a_history_that_was_left_go_once_the_new_one_has_two(folder: RunFolder, tiny_model: Path):
    written(folder, tiny_model, 3)
    join(folder, Base(attempt=1, parent=0, base_step=2, adopted_through=2))
    back = keep(folder, tiny_model, attempt=1)
    assert back.keeper.load_checkpoint(2).step == 2
    back.checkpoint(3)
    assert back.checkpoints() == ["00000002-000000", "00000003-000001"]


def test_a_retired_learner_removes_nothing_of_its_successors(folder: RunFolder, tiny_model: Path):
    retired = written(folder, tiny_model, 2)
    join(folder, Base(attempt=1, parent=0, base_step=1, adopted_through=1))
    successor = keep(folder, tiny_model, attempt=1)
    successor.keeper.load_checkpoint(1)
    successor.checkpoint(2)
    retired.checkpoint(3)
    retired.checkpoint(4)
    assert {"00000001-000000", "00000002-000001"} <= set(retired.checkpoints())


def test_one_of_another_run_stops_the_resume(folder: RunFolder, tiny_model: Path, tmp_path: Path):
    written(folder, tiny_model, 0)
    other = new_run(tmp_path / "other", name="sorting")
    written(other, tiny_model, 1)
    shutil.copytree(
        Path(other.url, "checkpoints/00000001-000000"),
        Path(folder.url, "checkpoints/00000001-000000"),
        dirs_exist_ok=True,
    )
    with pytest.raises(CheckpointMismatch, match=r"00000001-000000 is a checkpoint of another run: of sorting"):
        keep(folder, tiny_model, attempt=1).keeper.load_checkpoint(5)


def test_one_fits_only_where_one_was_written_in_half_the_time(folder: RunFolder, tiny_model: Path):
    kept = keep(folder, tiny_model)
    assert not kept.keeper.checkpoint_fits(3600)
    kept.checkpoint(0)
    assert kept.keeper.checkpoint_fits(3600)
    assert not kept.keeper.checkpoint_fits(1e-6)


def test_one_that_is_asked_for_twice_is_written_once(folder: RunFolder, tiny_model: Path):
    kept = written(folder, tiny_model, 1)
    kept.keeper.write_checkpoint(state_at(1, 0, kept.keeper.digest()))
    assert [event.payload["step"] for event in events_of(folder, 0, "checkpoint")] == [0, 1]


def test_the_age_of_the_checkpoint_that_was_loaded_counts(folder: RunFolder, tiny_model: Path):
    """Learners that live shorter than the interval would else replay ever more."""
    first = keep(folder, tiny_model)
    old = replace(state_at(0, 0, first.keeper.digest()), written_at=time.time() - 500)
    first.keeper.write_checkpoint(old)
    join(folder, Base(attempt=1, parent=0))
    second = keep(folder, tiny_model, attempt=1, checkpoint={"every_seconds": 400})
    assert not second.keeper.checkpoint_is_due()
    assert not second.keeper.checkpoint_fits(3600)
    second.keeper.load_checkpoint(0)
    assert second.keeper.checkpoint_is_due()
    assert second.keeper.checkpoint_fits(3600)
    assert not second.keeper.checkpoint_fits(0)
