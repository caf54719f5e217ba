"""What a run adds up to: groups by their fate, samples by their staleness, failed rewards, events by their kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agrpo.instruments.report.asking import ask, ask_one

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_BARS = 40
"""Of the histogram of staleness."""
MOST_EVENTS = 100
"""Listed one by one; the others are counted."""
FREQUENT = ("published", "version_served")
"""Kinds that happen at every step, and are only counted."""

LONGEST_DETAIL = 400
"""Characters of what an event told."""

_STALENESS = """
    SELECT staleness // $width * $width AS first, first + $width - 1 AS last, count(*) AS num_samples,
        avg(reward) FILTER (isfinite(reward)) AS reward
    FROM live_samples LEFT JOIN scores USING (ticket, rollout_index)
    WHERE staleness IS NOT NULL
    GROUP BY 1 ORDER BY 1
"""

_FATES = """
    SELECT status, reason, count(*) AS num_groups, coalesce(sum(num_rollouts), 0)::BIGINT AS num_rollouts, avg(reward) AS reward
    FROM group_status
    LEFT JOIN (SELECT ticket, count(*) AS num_rollouts FROM rollouts GROUP BY ticket) USING (ticket)
    LEFT JOIN (SELECT ticket, avg(reward) AS reward FROM scores WHERE isfinite(reward) GROUP BY ticket) USING (ticket)
    GROUP BY status, reason
    ORDER BY status = 'pending', status = 'dropped', num_groups DESC, reason
"""

_FAILED_REWARDS = """
    WITH asked AS (
        SELECT name, rewards.error FROM rewards JOIN rollouts USING (ticket, rollout_index) WHERE num_prompt_tokens > 0
    ),
    errors AS (
        SELECT name, error, count(*) AS number FROM asked WHERE error IS NOT NULL GROUP BY name, error
    ),
    commonest AS (
        SELECT name, sum(number)::BIGINT AS num_failed, arg_max(error, (number, error)) AS error, max(number) AS num_errors
        FROM errors GROUP BY name
    )
    SELECT name, num_failed, num_asked, error, num_errors
    FROM commonest JOIN (SELECT name, count(*) AS num_asked FROM asked GROUP BY name) USING (name)
    ORDER BY num_failed DESC, name
"""

_WORK = """
    SELECT
        (SELECT avg(duration_seconds) FROM rollouts) AS rollout_seconds,
        (SELECT avg(score_wait_seconds) FROM scored_groups) AS score_wait_seconds,
        (SELECT avg(score_seconds) FROM scored_groups) AS score_seconds
"""

_EVENT_KINDS = """
    SELECT kind, count(*) AS num_events, min(epoch(happened_at)) AS first_at, max(epoch(happened_at)) AS last_at
    FROM events GROUP BY kind ORDER BY kind
"""

_EVENTS = """
    WITH told AS (
        SELECT epoch(happened_at) AS told_at, coalesce(payload->>'$.stage', string_split(stream, '-')[1]) AS stage,
            kind, attempt, payload::VARCHAR AS detail
        FROM events WHERE NOT list_contains(?, kind)
        UNION ALL
        SELECT epoch(started_at), 'learner', 'attempt', attempt,
            CASE WHEN void IS NULL THEN 'has not begun a step yet: it loads the model, and replays what was done'
                WHEN void THEN 'ended before it began a step; it left nothing that counts'
                WHEN parent IS NULL THEN 'begins the run'
                ELSE 'continues attempt ' || parent || ' after step ' || base_step END || coalesce(' (' || host || ')', '')
        FROM attempts LEFT JOIN bases USING (attempt)
    )
    SELECT told_at, stage, kind, attempt, detail FROM told ORDER BY told_at DESC, kind LIMIT ?
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StalenessBar:
    """Trained samples of some staleness, in weight updates."""

    first: int
    last: int
    """Included; `first` unless staleness spreads far."""
    num_samples: int
    reward: float | None
    """Mean over the samples' rollouts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """Groups that became the same."""

    status: str
    """`trained`, `dropped` or `pending`."""
    reason: str | None
    """Why dropped, or how far a pending group has come."""
    num_groups: int
    num_rollouts: int
    reward: float | None
    """Mean over the groups' mean rewards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedReward:
    """A reward function that failed for some rollouts that the engine had answered."""

    name: str
    num_failed: int
    """Values that are missing for it."""
    num_asked: int
    """Rollouts that it was to judge."""
    error: str
    """The commonest."""
    num_errors: int
    """Values that this error cost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Mean seconds of what is done before the learner has a group. None: nothing was recorded."""

    rollout_seconds: float | None
    score_wait_seconds: float | None
    """From a group's end to its scoring."""
    score_seconds: float | None
    """All rewards of a group together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventKind:
    """Events of one kind."""

    kind: str
    num_events: int
    first_at: float
    """Unix seconds."""
    last_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EventLine:
    """One event, or the start of a learner."""

    told_at: float
    """Unix seconds."""
    stage: str
    kind: str
    attempt: int | None
    """None: the event belongs to no attempt of the learner."""
    detail: str


def read_staleness(connection: DuckDBPyConnection) -> tuple[StalenessBar, ...]:
    """Trained samples that count, by staleness."""
    most = ask_one(connection, "SELECT coalesce(max(staleness), 0) AS most FROM live_samples")["most"]
    width = most // MOST_BARS + 1
    return tuple(StalenessBar(**row) for row in ask(connection, _STALENESS.replace("$width", str(width))))


def read_fates(connection: DuckDBPyConnection) -> tuple[Fate, ...]:
    """Every group, by what became of it."""
    return tuple(Fate(**row) for row in ask(connection, _FATES))


def read_failed_rewards(connection: DuckDBPyConnection) -> tuple[FailedReward, ...]:
    """Those that failed, most often first."""
    return tuple(FailedReward(**row) for row in ask(connection, _FAILED_REWARDS))


def read_work(connection: DuckDBPyConnection) -> Work:
    """Over all rollouts and groups."""
    return Work(**ask_one(connection, _WORK))


def read_event_kinds(connection: DuckDBPyConnection) -> tuple[EventKind, ...]:
    """All events, counted."""
    return tuple(EventKind(**row) for row in ask(connection, _EVENT_KINDS))


def read_events(connection: DuckDBPyConnection) -> tuple[EventLine, ...]:
    """The newest events but the frequent ones, and the starts of learners, in order."""
    rows = ask(connection, _EVENTS, [list(FREQUENT), MOST_EVENTS])
    for row in rows:
        row["detail"] = _detail(row["detail"])
    return tuple(EventLine(**row) for row in reversed(rows))


def _detail(told: str) -> str:
    """A payload as words: `step 60, digest 1f…`."""
    if not told.startswith("{"):
        return told
    payload = {name: value for name, value in json.loads(told).items() if name != "stage"}
    words = ", ".join(f"{name} {value}" for name, value in payload.items())
    return words if len(words) <= LONGEST_DETAIL else f"{words[:LONGEST_DETAIL]} …"
