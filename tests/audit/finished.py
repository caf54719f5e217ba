"""A small finished run with its database, copied for every test, and ways to harm the copy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb

from agrpo.audit import Balance, verify
from agrpo.config import resolve
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.documents import dump
from agrpo.records.progress import Plan
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages.walk import settings, walk

GROUPS = 2
STEPS = 4


def begin(model: Path, place: Path, name: str = "run", *, num_prompts: int = 12, **tables: Any) -> RunFolder:
    """A run of four steps of two groups, of which nothing is written yet."""
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(num_prompts)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    return prepare(resolve(values=settings(model, prompts, place, **tables)), folder=str(place / name))


def finish(model: Path, place: Path, name: str = "run", **tables: Any) -> RunFolder:
    """One that was trained to its last step and recorded."""
    folder = begin(model, place, name, **tables)
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder


def copied(folder: RunFolder, place: Path) -> RunFolder:
    """As if it had always been there: the database names the run's place."""
    shutil.copytree(folder.url, place)
    copy = RunFolder.open(str(place))
    sql(copy, f"UPDATE runs SET url = '{place}'")
    return copy


def told(folder: RunFolder, **options: Any) -> list[str]:
    """What verifying finds, a line each."""
    return [str(finding) for finding in verify(RunFolder.open(folder.url), **options).findings]


def line(balance: Balance, what: str) -> str:
    """The table's line of this name."""
    (found,) = [line for line in balance.lines if line.what == what]
    return f"{found.number} {found.told}"


def plan_at(folder: RunFolder, step: int) -> Plan:
    plan = folder.plan(StepKey(0, step))
    assert plan is not None
    return plan


def replan(folder: RunFolder, plan: Plan, **changes: Any) -> None:
    """Write a changed plan in place of one, with a checksum that fits."""
    key = f"steps/{plan.attempt:06d}/{plan.step:08d}.plan.json"
    folder.filesystem.put(key, dump(replace(plan, **changes)), exclusive=False)


def flip(file: Path, place: float = 0.5) -> None:
    """Turn one bit of the file, so far into it."""
    data = bytearray(file.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x10
    file.unlink()  # a hard link or a mapping of it would change too
    file.write_bytes(data)


def sql(folder: RunFolder, statement: str) -> None:
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute(statement)
