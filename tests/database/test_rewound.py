"""Runs that went back, were resumed, or diverged, in SQL: which steps, versions and groups count, and since when not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.questions import find_question
from agrpo.database.writer import Database
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.versions import newest_version
from agrpo.records.progress import DropReason
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.database.synthetic import (
    T0,
    add_attempt,
    add_done,
    add_group,
    add_plan,
    add_rewind,
    add_scores,
    add_step,
    add_version,
    new_run,
)
from tests.stages.walk import settings, walk


@pytest.fixture
def folder(tmp_path, monkeypatch) -> RunFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return new_run(f"memory://{uuid4().hex}")


def rows(folder: RunFolder, sql: str) -> list[tuple]:
    record_once(folder, Database(folder.database))
    return [tuple(row.values()) for row in query(folder, sql).to_pylist()]


def twice_rewound(folder: RunFolder) -> None:
    """Back to 5, a rewinder that died, a replay that differs at 7, back to 7, and a step that finished too late."""
    histories = {
        0: ((None, 0), {}, range(1, 10)),
        2: ((0, 5), {"rewind": 0, "first_ticket": 20}, range(6, 9)),
        3: ((2, 6), {"adopted_through": 8}, range(7, 10)),
        4: ((3, 7), {"rewind": 1, "first_ticket": 30}, range(8, 10)),
        5: ((4, 8), {}, range(9, 10)),
    }
    for number, step in enumerate((5, 7)):
        add_rewind(folder, number, step)
    add_attempt(folder, 1, void=True)
    for attempt, (joined, facts, steps) in histories.items():
        for step in steps:
            add_step(folder, attempt, step)
        add_attempt(folder, attempt, *joined, **facts)


@pytest.mark.spec("K07")
def test_the_branches_of_a_run_are_told_apart(folder):
    twice_rewound(folder)
    record_once(folder, Database(folder.database))
    asked = find_question("branches").sql()
    columns = "attempt, first_step, last_step, live, left_by, left_because, rewind, left_at"
    assert rows(folder, f"SELECT {columns} FROM ({asked.rstrip(';')}) ORDER BY ALL") == [
        (0, 1, 5, True, None, None, None, None),
        (0, 6, 9, False, 2, "rewind", 0, datetime.fromtimestamp(T0 + 1000, UTC)),
        (2, 6, 6, True, None, None, None, None),
        (2, 7, 8, False, 3, "diverged", None, datetime.fromtimestamp(T0 + 3, UTC)),
        (3, 7, 7, True, None, None, None, None),
        (3, 8, 9, False, 4, "rewind", 1, datetime.fromtimestamp(T0 + 1001, UTC)),
        (4, 8, 8, True, None, None, None, None),
        (4, 9, 9, False, 5, "superseded", None, datetime.fromtimestamp(T0 + 5, UTC)),
        (5, 9, 9, True, None, None, None, None),
    ]


@pytest.mark.spec("K07")
def test_live_views_show_the_history_alone(folder):
    twice_rewound(folder)
    history = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (2, 6), (3, 7), (4, 8), (5, 9)]
    for view in (
        "live_steps",
        "live_plans",
        "(SELECT DISTINCT attempt, step FROM live_metrics)",
        "branches WHERE live",
    ):
        assert rows(folder, f"SELECT attempt, step FROM {view} ORDER BY step") == history
    assert rows(folder, "SELECT count(*), count(DISTINCT step) FROM steps") == [(9 + 3 + 3 + 2 + 1, 9)]
    asked = find_question("attempts").sql().rstrip(";")
    assert rows(folder, f"SELECT attempt, rewind, void, num_lost FROM ({asked})") == [
        (0, None, False, 4), (1, None, True, 0), (2, 0, False, 2), (3, None, False, 2), (4, 1, False, 1),
        (5, None, False, 0),
    ]  # fmt: skip


def test_a_wish_that_nobody_fulfilled_changes_nothing(folder):
    add_attempt(folder, 0)
    add_step(folder, 0, 1)
    add_rewind(folder, 0, 0)
    assert rows(folder, "SELECT step, live FROM branches") == [(1, True)]
    assert rows(folder, "SELECT number, step, asked_at FROM rewinds") == [
        (0, 0, datetime.fromtimestamp(T0 + 1000, UTC))
    ]


@pytest.mark.spec("K07")
def test_the_newest_version_that_counts_is_the_one_engines_load(folder):
    twice_rewound(folder)
    published = [(0, 5, 5), (0, 9, 9), (2, 10, 6), (2, 12, 8), (3, 13, 7), (3, 14, 9), (4, 15, 8)]
    for attempt, version, step in published:
        add_version(folder, version, attempt, step)
        found = rows(folder, "SELECT max(version) FROM live_versions")
        assert found == [(newest_version(folder).version,)]
    assert rows(folder, "SELECT version FROM live_versions ORDER BY 1") == [(5,), (10,), (13,), (15,)]


def rewound(folder: RunFolder) -> None:
    """Steps 1 and 2, then back to 1: tickets 0 and 1 stay, 2 and 3 are given up, 5 is late, 4 and 6 are asked since."""
    add_attempt(folder, 0)
    sampled = {0: (0, 0), 1: (0, 1), 2: (0, 1), 3: (0, 2), 5: (0, 2), 4: (1, 1), 6: (1, 1)}
    for ticket, (attempt, step) in sampled.items():
        again = {4: "p2", 6: "p3"}.get(ticket)
        facts = {} if again is None else {"prompt": _prompt(again)}
        base = {4: 1, 6: 1}.get(ticket, 0)
        add_group(folder, ticket, base=base, model_attempt=attempt, model_step=step, model_ordinal=step, **facts)
        add_scores(folder, ticket)
    add_step(folder, 0, 1, [0])
    add_step(folder, 0, 2, [2])
    add_rewind(folder, 0, 1)
    add_attempt(folder, 1, 0, 1, rewind=0, first_ticket=4, reissue=[2, 3], prompts=[2, 3], next_prompt=4)


def _prompt(id_: str):
    from agrpo.records.prompt import Prompt

    return Prompt(id=id_, messages=[{"role": "user", "content": "1+1?"}])


def test_tickets_are_void_in_sql_as_in_the_queue(folder):
    rewound(folder)
    void = Rewinds(folder.bases(), folder.claims.base_of).void_tickets(folder.claims.tickets(0))
    assert rows(folder, "FROM void_tickets ORDER BY 1") == [(ticket, str(reason)) for ticket, reason in void.items()]
    assert [*void] == [2, 3, 5]


def test_what_the_run_gave_up_is_pending_until_a_step_drops_it(folder):
    rewound(folder)
    status = "SELECT ticket, status, reason, step FROM group_status WHERE ticket IN (1, 2, 3, 5) ORDER BY 1"
    assert rows(folder, status) == [
        (1, "pending", "scored", None),
        (2, "pending", "reissued", None),
        (3, "pending", "reissued", None),
        (5, "pending", "void_base", None),
    ]
    drops = {2: DropReason.REISSUED, 3: DropReason.REISSUED, 5: DropReason.VOID_BASE}
    add_done(folder, add_plan(folder, StepKey(1, 2), [1], drops))
    assert rows(folder, status) == [
        (1, "trained", None, 2),
        (2, "dropped", "reissued", 2),
        (3, "dropped", "reissued", 2),
        (5, "dropped", "void_base", 2),
    ]
    assert rows(folder, "SELECT DISTINCT staleness FROM live_step_groups WHERE NOT trained") == [(None,)]


def test_prompts_of_void_groups_are_found_where_they_are_asked_again(folder):
    rewound(folder)
    record_once(folder, Database(folder.database))
    assert rows(folder, find_question("asked_again").sql()) == [
        (5, "void_base", None, "p5", None, None),
        (3, "reissued", None, "p3", 6, "pending"),
        (2, "reissued", 2, "p2", 4, "pending"),
    ]


def test_a_group_of_a_version_that_was_left_is_void_unless_its_steps_were_carried_out_again(folder):
    twice_rewound(folder)
    for ticket, (attempt, step) in enumerate([(0, 5), (0, 6), (2, 6), (2, 7), (2, 8), (3, 7), (1, 1)]):
        add_group(folder, ticket, model_attempt=attempt, model_step=step)
    add_group(folder, 7)
    rewinds = Rewinds(folder.bases(), folder.claims.base_of)
    groups = rows(folder, "SELECT ticket, model_attempt, model_step FROM groups ORDER BY 1")
    lost = [ticket for ticket, attempt, step in groups if not rewinds.version_counts(attempt, step)]
    assert rows(folder, "SELECT ticket FROM void_tickets WHERE reason = 'void_version' ORDER BY 1") == [
        (ticket,) for ticket in lost
    ]
    assert lost == [1, 4, 6]


def test_void_groups_are_in_no_measure_of_the_step_that_drops_them(folder):
    rewound(folder)
    drops = {2: DropReason.REISSUED, 3: DropReason.REISSUED, 5: DropReason.VOID_BASE}
    add_done(folder, add_plan(folder, StepKey(1, 2), [1], drops), 11)
    logged = dict(rows(folder, "SELECT name, value FROM live_metrics WHERE step = 2"))
    assert dict(rows(folder, "SELECT name, value FROM step_metrics WHERE step = 2")) == pytest.approx(logged)
    assert logged["reward"] == 0.5


def test_staleness_counts_publishes_of_the_history(folder):
    add_attempt(folder, 0)
    add_group(folder, 0, version=11, model_step=5, model_ordinal=5)
    add_group(folder, 1, version=3)
    for ticket in (0, 1):
        add_scores(folder, ticket)
    stale = dict.fromkeys((0, 1), DropReason.STALE)
    add_plan(folder, StepKey(0, 7), [], stale, version=12, publish=13, ordinal=7)
    ages = "SELECT ticket, staleness FROM live_step_groups ORDER BY 1"
    assert rows(folder, ages) == [(0, 1), (1, 3)]
    assert rows(folder, "SELECT ordinal_before FROM live_plans") == [(6,)]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.spec("K05")
def test_the_steps_of_a_resumed_run_are_numbered_on(tiny_model: Path, tmp_path: Path, every: int):
    prompts = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(3)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    laid = {"asynchronous": {"weight_sync_steps": every}, "stop": {"max_steps": 2}}
    folder = prepare(resolve(values=settings(tiny_model, tmp_path / "prompts.jsonl", tmp_path, **laid)))
    walk(folder)
    document = folder.document()
    document["settings"]["tree"]["stop"]["max_steps"] = 4
    folder.filesystem.put("run.json", json.dumps(document).encode(), exclusive=False)
    folder.filesystem.delete("hint")
    walk(folder)
    whole = [(step, 1) for step in range(1, 5)]
    for rows_of_steps in ("live_steps", "(SELECT step FROM live_metrics WHERE name = 'loss')", "live_plans"):
        assert rows(folder, f"SELECT step, count(*) FROM {rows_of_steps} GROUP BY step ORDER BY step") == whole
    assert rows(folder, "SELECT base_step FROM bases WHERE attempt = 1") == [(2,)]
    assert rows(folder, "SELECT list(step ORDER BY step) FROM live_steps WHERE attempt = 1") == [([3, 4],)]
    (counted,) = rows(folder, "SELECT bool_and(epoch = ticket // 3), count(*) >= 8 FROM groups")
    assert counted == (True, True)
    versions = "SELECT step, version FROM live_versions ORDER BY version"
    assert rows(folder, versions) == [(step, step // every) for step in range(0, 5, every)]
