"""What rewards noted of a rollout, under its rewards."""

from __future__ import annotations

import json
from pathlib import Path

from agrpo.database.writer import Database
from agrpo.instruments.rollout_page.document import page_document
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_group, add_scores, new_run
from tests.instruments.test_rollout_page import part_of, read, shown


def a_run(tmp_path: Path) -> RunFolder:
    folder = new_run(tmp_path / "run")
    add_attempt(folder, 0)
    add_group(folder, 0)
    add_group(folder, 1)
    noted = {"judge": {"why": ["too\x1b long\nby far", None], "right": [True, False]}}
    add_scores(folder, 0, {"judge": [1.0, 0.0]}, extras=noted)
    add_scores(folder, 1)
    record_once(folder, Database(folder.database))
    return folder


def test_what_a_reward_noted_stands_under_the_rewards(tmp_path: Path):
    folder = a_run(tmp_path)
    lines = [line.split() for line in part_of(shown(read(folder, 0)), "rewards", "group 0")]
    start = lines.index(["noted", "by", "column", "value"])
    assert lines[start + 1 : start + 4] == [
        ["judge", "why", "too␛", "long↵"],
        ["by", "far"],
        ["judge", "right", "true"],
    ]
    assert ["judge", "why", "none"] in [line.split() for line in shown(read(folder, 0, 1)).splitlines()]
    assert "noted by" not in shown(read(folder, 1))


def test_programs_are_told_of_notes(tmp_path: Path):
    noted = json.loads(page_document(read(a_run(tmp_path), 0, 1)))["extras"]
    assert noted == [
        {"reward": "judge", "name": "why", "value": None},
        {"reward": "judge", "name": "right", "value": "false"},
    ]
