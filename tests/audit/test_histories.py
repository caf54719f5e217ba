"""Histories that were joined, left and taken over: their books balance, they replay, and their database is made again."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import torch

from agrpo.audit import rebuild, replay, verify
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.history import newest_done
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.runs import go_back
from agrpo.stages.recorder import record_once
from agrpo.whatif.asking import answer
from agrpo.whatif.question import ask_advantage
from agrpo.whatif.question import begin as ask
from tests.audit.finished import begin, flip, line, sql, told
from tests.stages.walk import LOCKSTEP, Walk, walk

ASYNC = {"asynchronous": {"max_staleness": 2}}
BOTH = [pytest.param(LOCKSTEP, id="lockstep", marks=pytest.mark.slow), pytest.param(ASYNC, id="async")]


def sound(folder: RunFolder) -> None:
    """It balances, replays from the first weights, and its database is the one a rebuild makes."""
    record_once(folder, Database(folder.database))
    assert told(folder, deep=True) == []
    outcome = replay(folder, from_start=True)
    assert outcome.identical, outcome.difference
    assert outcome.digest == newest_done(folder).digest
    assert rebuild(folder, check=True).identical


def stop_after(folder: RunFolder, steps: int) -> None:
    """Train so many steps, then leave everything where it is."""
    living = Walk(folder).start("generator", "scorer", "learner")
    living.until(lambda: len(folder.done_steps(0)) >= steps)
    living.stop.set()
    for thread in living.threads:
        thread.join(60)


@pytest.mark.parametrize("tables", BOTH)
def test_a_run_that_was_stopped_and_went_on(tiny_model: Path, tmp_path: Path, tables: dict):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 6}, **tables)
    stop_after(folder, 3)
    assert verify(folder, database=False).findings == []
    walk(folder)
    sound(folder)
    flip(Path(folder.url, "bases", "000000.json"))
    found = told(folder)
    assert any(one.startswith("bases/000000.json: ") for one in found)
    assert "bases/000001.json: expected a living base of its parent 0, found none" in found


@pytest.mark.parametrize("tables", BOTH)
def test_a_run_that_went_back_twice(tiny_model: Path, tmp_path: Path, tables: dict):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 5}, **tables)
    walk(folder)
    for step in (3, 1):
        go_back(folder, step)
        assert verify(folder, database=False).findings == []
        walk(folder)
    sound(folder)
    assert "reissued" in line(verify(folder), "tickets")


def test_a_step_half_done_that_another_attempt_adopted(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 3}, **LOCKSTEP)
    walk(folder)
    folder.filesystem.delete("steps/000000/00000003.done.json")
    folder.filesystem.delete("versions/000000/00000003.json")
    for name in folder.filesystem.list("checkpoints"):
        if name.startswith("00000003"):
            folder.filesystem.delete(f"checkpoints/{name}")
    for engine in folder.engines():
        folder.filesystem.delete(f"acks/{engine}/00000003.json")
    folder.filesystem.delete("model")
    folder.filesystem.delete("hint")
    assert verify(folder, database=False).findings == []
    walk(folder)
    sound(folder)


def test_steps_that_another_machine_carried_out_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 4}, resume={"on_difference": "continue"}, **ASYNC)
    clip = torch.nn.utils.clip_grad_norm_
    with monkeypatch.context() as elsewhere:  # where sums of gradients have other bits
        elsewhere.setattr(torch.nn.utils, "clip_grad_norm_", lambda weights, norm: clip(weights, norm * 0.5))
        walk(folder)
    for name in folder.filesystem.list("checkpoints"):
        if not name.startswith("00000000"):
            folder.filesystem.delete(f"checkpoints/{name}")
    folder.filesystem.delete("hint")
    walk(folder)
    assert folder.bases()[1].adopted_through == 4
    sound(folder)
    go_back(folder, 2)
    walk(folder)
    sound(folder)


@pytest.mark.spec("K05")
@pytest.mark.parametrize("sync_steps", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_labels_go_on_after_a_resume_without_a_gap_or_a_repeat(tiny_model: Path, tmp_path: Path, sync_steps: int):
    tables = {"asynchronous": {"max_staleness": 2, "weight_sync_steps": sync_steps}}
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 14}, **tables)
    stop_after(folder, 10)
    last = newest_done(folder).step
    walk(folder)
    sound(folder)
    labels = query(
        folder, "SELECT step, count(*) AS num FROM live_metrics WHERE name = 'loss' GROUP BY ALL ORDER BY ALL"
    )
    assert labels.to_pylist() == [{"step": step, "num": 1} for step in range(1, 15)]
    first = query(folder, "SELECT min(step) AS step FROM live_steps WHERE attempt = 1").to_pylist()
    assert first == [{"step": last + 1}]
    epochs = query(folder, "SELECT epoch = ticket // 12 AS on_time FROM groups").column("on_time").to_pylist()
    assert all(epochs)


def test_a_run_that_is_not_on_a_disk_is_read_by_many_at_once(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = open_filesystem(f"memory://{uuid.uuid4().hex}")
    for name in set(finished.filesystem.list("")) - {finished.database.name}:
        for file in [
            path for path in (Path(finished.url) / name, *Path(finished.url, name).rglob("*")) if path.is_file()
        ]:
            store.put(file.relative_to(finished.url).as_posix(), file.read_bytes())
    folder = RunFolder.open(store.url)
    sound(folder)
    key = folder.groups.key(folder.plan(StepKey(0, 2)).tickets[0])
    data = bytearray(store.get(key).to_pybytes())
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data), exclusive=False)
    (found,) = told(folder)
    assert found.startswith(f"{key}: ")


def test_what_ifs_are_read_and_held_against_the_database(tiny_model: Path, tmp_path: Path):
    folder = begin(tiny_model, tmp_path, stop={"max_steps": 2}, **ASYNC)
    walk(folder)
    question = ask(folder, ask_advantage(folder, "grpo", ["scale=none"], name="unscaled"))
    answer(folder, question)
    sound(folder)
    assert line(verify(folder), "what-ifs").startswith("1 over ")
    sql(folder, "DELETE FROM whatif_rollouts WHERE ticket = 1 AND rollout_index = 0")
    (found,) = told(folder)
    assert found.startswith("database, table whatif_rollouts, whatif/")
