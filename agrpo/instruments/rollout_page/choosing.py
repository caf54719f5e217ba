"""Which rollouts are meant: by ticket and index, by id, by what became of them, or by their prompt."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from agrpo.database.queries import asking
from agrpo.errors import RolloutNotFound
from agrpo.instruments.rollout_page.reading import filled, rows_of
from agrpo.records.prompt import Message

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from agrpo.queue.run_folder import RunFolder

NAMED_CANDIDATES = 6

_LAST_STEPS = """(
    $last IS NULL OR ticket IN (
        SELECT ticket FROM live_step_groups WHERE step > (SELECT max(step) FROM live_plans) - $last
    )
)"""
_CHOSEN = """
    WITH picked AS (
        SELECT group_status.ticket, rollout_index, rollout_id, status, reason, step, reward, num_completion_tokens,
            stop_reason, error, completion_text, group_status.prompt_id, count(*) OVER () AS num_matching
        FROM group_status JOIN groups USING (ticket) LEFT JOIN rollouts USING (ticket)
            LEFT JOIN scores USING (ticket, rollout_index)
        WHERE {condition} AND {last_steps}
    )
    SELECT * FROM picked ORDER BY {order} LIMIT $count
"""
_PROMPT_GROUPS = f"""
    WITH own AS (
        SELECT ticket, count(*) AS num_rollouts, avg(num_completion_tokens) AS mean_tokens, avg(reward) AS reward_mean,
            stddev_samp(reward) AS reward_std, count(DISTINCT completion_text) AS num_different
        FROM rollouts LEFT JOIN scores USING (ticket, rollout_index)
        GROUP BY ticket
    )
    SELECT ticket, groups.epoch, status, reason, step, groups.model_version, groups.claimed_at, groups.prompt, own.* EXCLUDE ticket,
        count(*) OVER () AS num_matching
    FROM group_status JOIN groups USING (ticket) LEFT JOIN own USING (ticket)
    WHERE groups.prompt_id = $prompt AND {_LAST_STEPS}
    ORDER BY ticket DESC LIMIT $count
"""
_FAILED = "('engine_error', 'timeout', 'stale_in_flight', 'tool_error', 'environment_error')"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One rollout. `rollout_index` is None where its group has none, for its prompt was refused."""

    ticket: int
    rollout_index: int | None

    def __str__(self) -> str:
        """As `find_rollout` reads it."""
        return f"{self.ticket}" if self.rollout_index is None else f"{self.ticket}/{self.rollout_index}"


class Pick(StrEnum):
    """What rollouts are chosen for."""

    BEST = "best"
    WORST = "worst"
    FAILED = "failed"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenRollout:
    """One line of a list of rollouts."""

    ticket: int
    rollout_index: int | None
    rollout_id: str | None
    prompt_id: str
    status: str
    reason: str | None
    step: int | None
    reward: float | None
    num_completion_tokens: int | None
    stop_reason: str | None
    error: str | None
    completion_text: str | None

    @property
    def place(self) -> Place:
        return Place(ticket=self.ticket, rollout_index=self.rollout_index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The first of the rollouts that were asked for, and how many there are."""

    rollouts: list[ChosenRollout]
    num_matching: int
    asked: int
    """How many were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptGroup:
    """One group of a prompt, newest first."""

    ticket: int
    epoch: int
    status: str
    reason: str | None
    step: int | None
    model_version: int
    claimed_at: datetime
    num_rollouts: int | None
    mean_tokens: float | None
    reward_mean: float | None
    reward_std: float | None
    """Sample standard deviation."""
    num_different: int | None
    """Different completion texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptGroups:
    """The newest groups of one prompt, and how many there are."""

    prompt_id: str
    prompt: list[Message]
    groups: list[PromptGroup]
    num_matching: int


def find_rollout(run: RunFolder, rollout: str) -> Place:
    """The rollout that `TICKET/INDEX`, `TICKET` (its first) or the beginning of an id means. Raises `RolloutNotFound`."""
    numbers = re.fullmatch(r"(\d+)(?:/(\d+))?", rollout)
    with asking(run) as connection:
        if numbers is None:
            return _by_id(connection, rollout)
        ticket, index = int(numbers[1]), int(numbers[2] or 0)
        recorded = rows_of(connection, "SELECT num_rollouts FROM groups WHERE ticket = $ticket", ticket=ticket)
        if not recorded:
            _refuse_unrecorded(run, connection, ticket)
    num_rollouts = recorded[0]["num_rollouts"]
    if numbers[2] is None and num_rollouts == 0:
        return Place(ticket=ticket, rollout_index=None)
    if index >= num_rollouts:
        has = f"{num_rollouts} rollouts, 0 to {num_rollouts - 1}" if num_rollouts else "none: its prompt was refused"
        raise RolloutNotFound(f"group {ticket} has no rollout {index}; it has {has}")
    return Place(ticket=ticket, rollout_index=index)


def pick(run: RunFolder, what: Pick, *, reason: str | None = None, last: int | None = None, count: int = 1) -> Chosen:
    """Rollouts of the last `last` steps (None: of the whole run), the best or else the newest first.

    `reason`: why their groups were dropped. Raises `RolloutNotFound` where there are none.
    """
    condition, order = {
        Pick.BEST: ("reward IS NOT NULL", "reward DESC, ticket DESC, rollout_index"),
        Pick.WORST: ("reward IS NOT NULL", "reward, ticket DESC, rollout_index"),
        Pick.FAILED: (f"(error IS NOT NULL OR stop_reason IN {_FAILED})", "ticket DESC, rollout_index"),
        Pick.DROPPED: ("status = 'dropped' AND reason = $reason", "ticket DESC, rollout_index"),
    }[what]
    sql = _CHOSEN.format(condition=condition, order=order, last_steps=_LAST_STEPS)
    values = {"reason": reason} if what is Pick.DROPPED else {}
    with asking(run) as connection:
        rows = rows_of(connection, sql, last=last, count=count, **values)
        if not rows:
            raise RolloutNotFound(_nothing_picked(connection, what, reason, last))
    return Chosen(
        rollouts=[filled(ChosenRollout, row) for row in rows], num_matching=rows[0]["num_matching"], asked=count
    )


def groups_of_prompt(run: RunFolder, prompt: str, *, last: int | None = None, count: int = 20) -> PromptGroups:
    """The groups of the prompt whose id is, or begins with, `prompt`. Raises `RolloutNotFound`."""
    with asking(run) as connection:
        sql = "SELECT DISTINCT prompt_id FROM groups WHERE starts_with(prompt_id, $prompt) ORDER BY 1"
        ids = [row["prompt_id"] for row in rows_of(connection, sql, prompt=prompt)]
        prompt_id = prompt if prompt in ids else _only(ids, f'prompt "{prompt}"', "no recorded group has it")
        rows = rows_of(connection, _PROMPT_GROUPS, prompt=prompt_id, last=last, count=count)
    if not rows:
        raise RolloutNotFound(f"no group of prompt {prompt_id} is in the last {last} steps; leave out --last")
    groups = [filled(PromptGroup, row) for row in rows]
    return PromptGroups(
        prompt_id=prompt_id,
        prompt=json.loads(rows[0]["prompt"]),
        groups=groups,
        num_matching=rows[0]["num_matching"],
    )


def _by_id(connection: DuckDBPyConnection, rollout: str) -> Place:
    sql = """SELECT ticket, rollout_index, rollout_id FROM rollouts
        WHERE starts_with(rollout_id, $id) ORDER BY rollout_id = $id DESC, ticket, rollout_index"""
    rows = rows_of(connection, sql, id=rollout)
    rows = [row for row in rows if row["rollout_id"] == rollout] or rows
    names = [f"{row['rollout_id']} ({row['ticket']}/{row['rollout_index']})" for row in rows]
    how = f"give TICKET/INDEX such as 12/3, TICKET, or the beginning of an id; {_recorded(connection)}"
    _only(names, f'rollout "{rollout}"', how)
    return Place(ticket=rows[0]["ticket"], rollout_index=rows[0]["rollout_index"])


def _only(names: list[str], what: str, where_none: str) -> str:
    if not names:
        raise RolloutNotFound(f"no {what}: {where_none}")
    if len(names) > 1:
        more = f" and {len(names) - NAMED_CANDIDATES} more" if len(names) > NAMED_CANDIDATES else ""
        listed = ", ".join(names[:NAMED_CANDIDATES])
        raise RolloutNotFound(f"{what} is the beginning of {len(names)}: {listed}{more}; write more of it")
    return names[0]


def _recorded(connection: DuckDBPyConnection) -> str:
    """How far the recorder is."""
    (row,) = rows_of(connection, "SELECT count(*) AS groups, max(ticket) AS last FROM groups")
    return f"recorded so far: {row['groups']} groups" + (f", up to ticket {row['last']}" if row["groups"] else "")


def _refuse_unrecorded(run: RunFolder, connection: DuckDBPyConnection, ticket: int) -> NoReturn:
    if run.groups.exists(ticket):
        state = "is generated and not recorded yet; the recorder follows within recorder.every_seconds"
    elif (holder := run.claims.holder(ticket)) is not None:
        state = f"is claimed by {holder.owner} and not generated yet"
    else:
        state = "is not claimed by any generator"
    raise RolloutNotFound(f"group {ticket} {state}. {_recorded(connection).capitalize()}")


def _nothing_picked(connection: DuckDBPyConnection, what: Pick, reason: str | None, last: int | None) -> str:
    meant = {
        Pick.BEST: "has a reward",
        Pick.WORST: "has a reward",
        Pick.FAILED: "failed",
        Pick.DROPPED: f"was dropped as {reason}",
    }[what]
    within = f" in the last {last} steps" if last else ""
    sql = "SELECT reason, count(*) AS num FROM group_status WHERE status = 'dropped' GROUP BY 1 ORDER BY 2 DESC, 1"
    drops = ", ".join(f"{row['reason']} {row['num']}" for row in rows_of(connection, sql)) or "none"
    told = f"; groups dropped in the whole run: {drops}" if what is Pick.DROPPED else ""
    return f"no rollout {meant}{within}{told}. {_recorded(connection).capitalize()}"
