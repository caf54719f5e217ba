"""One rollout's page from the database, in one short visit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agrpo.database.queries import HasDatabase, asking
from agrpo.instruments.rollout_page.facts import (
    CallFacts,
    Consumption,
    ExtraFacts,
    GroupFacts,
    RewardFacts,
    RolloutFacts,
    RolloutPage,
    SampleFacts,
)
from agrpo.instruments.rollout_page.tokens import Pieces, turn_rows, turns_of, why_no_learner
from agrpo.records.prompt import Message

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from agrpo.instruments.rollout_page.choosing import Place

T = TypeVar("T")
Row = Mapping[str, Any]

_CONSUMED = """
    SELECT live_step_groups.*, live_plans.version, live_plans.planned_at, live_steps.finished_at
    FROM live_step_groups JOIN live_plans USING (attempt, step) LEFT JOIN live_steps USING (attempt, step)
    WHERE ticket = $ticket ORDER BY step
"""
_ROLLOUTS = "SELECT * FROM rollouts_with_rewards WHERE ticket = $ticket ORDER BY rollout_index"
_REWARDS = "SELECT * FROM rewards WHERE ticket = $ticket AND rollout_index = $index"
_EXTRAS = "SELECT * FROM reward_extras WHERE ticket = $ticket AND rollout_index = $index ORDER BY rowid"
_TURNS = "SELECT * FROM turns WHERE ticket = $ticket AND rollout_index = $index ORDER BY turn_index"
_CALLS = "SELECT * FROM tool_calls WHERE ticket = $ticket AND rollout_index = $index ORDER BY call_index"
_SAMPLES = """
    SELECT * FROM live_samples WHERE ticket = $ticket AND rollout_index = $index ORDER BY step, sequence_index
"""


class ReadableRun(HasDatabase, Protocol):
    """A run folder, as far as a page reads it."""

    url: str

    def document(self) -> dict[str, Any]: ...


def rows_of(connection: DuckDBPyConnection, sql: str, **values: object) -> list[dict[str, Any]]:
    """The rows of a query with `$names`, as dictionaries."""
    cursor = connection.execute(sql, values or None)
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_page(run: ReadableRun, place: Place, pieces: Pieces) -> RolloutPage:
    """The page of a recorded rollout, or of a refused prompt. Raises as `database.queries.connect`."""
    with asking(run) as connection:
        ticket, index = {"ticket": place.ticket}, {"ticket": place.ticket, "index": place.rollout_index}
        status = rows_of(connection, "SELECT * FROM group_status WHERE ticket = $ticket", **ticket)
        scored = rows_of(connection, "SELECT * FROM scored_groups WHERE ticket = $ticket", **ticket)
        groups = rows_of(connection, "SELECT * FROM groups WHERE ticket = $ticket", **ticket)
        consumed = [filled(Consumption, row) for row in rows_of(connection, _CONSUMED, **ticket)]
        rollouts = [_rollout(row) for row in rows_of(connection, _ROLLOUTS, **ticket)]
        rewards = [filled(RewardFacts, row) for row in rows_of(connection, _REWARDS, **index)]
        extras = [filled(ExtraFacts, row) for row in rows_of(connection, _EXTRAS, **index)]
        samples = [filled(SampleFacts, row) for row in rows_of(connection, _SAMPLES, **index)]
        turns = rows_of(connection, _TURNS, **index)
        calls = rows_of(connection, _CALLS, **index) if _has_calls(connection) else []
    assert groups, f"group {place.ticket} was chosen from the rows of this database"
    group = _group({**(scored[0] if scored else {}), **groups[0], **status[0]})
    rollout = next((one for one in rollouts if one.rollout_index == place.rollout_index), None)
    records = turn_rows(turns)
    views = turns_of(records, samples, pieces)
    document = run.document()
    by_function = rollout is not None and _by_function(document, rollout)
    return RolloutPage(
        run=document.get("name") or run.url.rstrip("/").rpartition("/")[2],
        group=group,
        consumed=consumed,
        rollout=rollout,
        by_function=by_function,
        asked=_text(records[0].prompt_ids, pieces) if by_function and records else None,
        rollouts=rollouts,
        rewards=rewards,
        extras=extras,
        samples=samples,
        turns=views,
        calls=list(_calls(calls, rollout.completion if rollout else [])),
        no_text=pieces.missing if views else None,
        no_learner=why_no_learner(group, consumed, samples, views) if views else None,
    )


def _by_function(document: Mapping[str, Any], rollout: RolloutFacts) -> bool:
    tree: Mapping[str, Any] = document["settings"]["tree"]
    return rollout.own_columns is not None or tree.get("rollout_loop", {}).get("rollout_func") is not None


def _text(token_ids: Sequence[int], pieces: Pieces) -> str | None:
    texts = [piece for piece in pieces(token_ids) if piece is not None]
    return "".join(texts) if pieces.missing is None else None


def _has_calls(connection: DuckDBPyConnection) -> bool:
    """Whether the database is of a version that records calls."""
    return bool(rows_of(connection, "SELECT 1 FROM duckdb_tables() WHERE table_name = 'tool_calls'"))


def _calls(rows: Sequence[Row], completion: Sequence[Message]) -> Iterator[CallFacts]:
    """The calls with their messages: the assistant's that made each, and the tool's that answered it."""
    written = {
        call["id"]: call["function"]["arguments"] for message in completion for call in message.get("tool_calls") or []
    }
    answers = [message for message in completion if message.get("role") == "tool"]
    for row, answer in zip_longest(rows, answers[: len(rows)], fillvalue={}):
        arguments = written.get(answer.get("tool_call_id"))
        shown = None if arguments is None else json.dumps(arguments, ensure_ascii=False)
        yield filled(CallFacts, {**row, "arguments": shown, "result": answer.get("content")})


def filled(cls: type[T], row: Row) -> T:
    """A record from the columns of its fields' names; None for one that an older database does not have."""
    return cls(**{field.name: row.get(field.name) for field in fields(cls)})  # pyright: ignore[reportArgumentType]


def _group(row: Row) -> GroupFacts:
    parsed = {"prompt": json.loads(row["prompt"]), "facts": json.loads(row["facts"]), "marks": row.get("marks") or []}
    return filled(GroupFacts, {**row, **parsed})


def _rollout(row: Row) -> RolloutFacts:
    own = {name: row.get(name) for name in ("own_prompt", "own_columns")}
    parsed = {name: None if value is None else json.loads(value) for name, value in own.items()}
    return filled(RolloutFacts, {**row, **parsed, "completion": json.loads(row["completion"])})
