"""What a report says of a run: plain records, each number the answer to a query over the run's database."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.database.queries import HasDatabase, asking
from agrpo.instruments.diagnosis import Finding, diagnose, recorded_ending, recorded_waiting
from agrpo.instruments.history import recorded_history
from agrpo.instruments.report import counts, curves, story
from agrpo.instruments.report.asking import ask_one
from agrpo.instruments.report.counts import EventKind, EventLine, FailedReward, Fate, StalenessBar, Work
from agrpo.instruments.report.curves import Band, Window
from agrpo.instruments.report.story import PromptStories

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TOTALS = """
    SELECT
        (SELECT count(*) FROM rollouts) AS num_rollouts,
        (SELECT count(*) FROM group_status) AS num_groups,
        (SELECT coalesce(sum(num_completion_tokens), 0)::BIGINT FROM rollouts) AS generated_tokens,
        (SELECT coalesce(sum(num_trained_tokens), 0)::BIGINT FROM live_samples) AS trained_tokens,
        (SELECT coalesce(arg_max(num_tokens, step), 0) FROM live_steps) AS forwarded_tokens,
        (SELECT count(*) FROM live_steps) AS steps,
        (SELECT sum(step_seconds) FROM live_steps) AS step_seconds,
        (SELECT max(epoch(finished_at)) FROM live_steps) AS ended_at,
        (SELECT count(*) FROM attempts) AS num_attempts,
        (SELECT count(*) FROM events WHERE kind = 'finished' AND attempt = (SELECT max(attempt) FROM attempts)) > 0
            AS finished
"""

_REWARD = """
    WITH rewards AS (SELECT step, value FROM step_metrics WHERE name = 'reward' AND isfinite(value))
    SELECT
        arg_min(value, step) AS first, arg_max(value, step) AS last, min(value) AS lowest, max(value) AS best,
        min(step) FILTER (value = top) AS best_step, count(*) AS num_steps,
        avg(value) FILTER (step > newest - greatest(1, newest // 10)) AS late
    FROM rewards, (SELECT max(value) AS top, max(step) AS newest FROM rewards)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardFigures:
    """The mean reward of steps. None: no step has one."""

    first: float | None
    last: float | None
    lowest: float | None
    best: float | None
    best_step: int | None
    """The first step of the best reward."""
    late: float | None
    """Mean over the last tenth of the steps."""
    num_steps: int
    """That have one."""

    @property
    def constant(self) -> bool:
        """Whether all of several steps have the same."""
        if self.lowest is None or self.best is None:
            return False
        return self.num_steps > 1 and math.isclose(self.lowest, self.best, rel_tol=1e-9, abs_tol=1e-12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The run in a few numbers."""

    name: str
    url: str
    created_at: str
    finished: bool
    """Whether the newest learner said that the run is at its end."""
    steps: int
    max_steps: int | None
    num_attempts: int
    ended_at: float | None
    """Unix seconds at which the last step was done. None: no step yet."""
    step_seconds: float | None
    """Wall time of all steps, without what lies between one learner's end and the next one's first step. None: no step."""
    num_groups: int
    num_rollouts: int
    generated_tokens: int
    forwarded_tokens: int
    trained_tokens: int
    reward: RewardFigures

    @property
    def tokens_per_second(self) -> float | None:
        """Forwarded tokens over the time of all steps."""
        return self.forwarded_tokens / self.step_seconds if self.step_seconds else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Everything that a report shows of one run."""

    summary: Summary
    document: Mapping[str, Any]
    """run.json: settings with their origins, packages."""
    window_steps: int
    """Steps that one point of a curve stands for."""
    windows: tuple[Window, ...]
    measures: Mapping[str, tuple[float | None, ...]]
    """By documented name, one value per window; None: nothing to say there."""
    reward_band: Band
    length_band: Band
    step_parts: Mapping[str, tuple[float | None, ...]]
    """Mean seconds per step, by part of a step."""
    part_totals: Mapping[str, float]
    """Seconds of all steps, by part."""
    work: Work
    failed_rewards: tuple[FailedReward, ...]
    drops: Mapping[str, tuple[float | None, ...]]
    """Groups per step, by drop reason."""
    staleness: tuple[StalenessBar, ...]
    fates: tuple[Fate, ...]
    stories: PromptStories
    findings: tuple[Finding, ...]
    """What the last steps say, worst first."""
    event_kinds: tuple[EventKind, ...]
    events: tuple[EventLine, ...]

    def measure(self, name: str) -> tuple[float | None, ...]:
        """The values of a measure; all None where it was not logged."""
        return self.measures.get(name, (None,) * len(self.windows))


def read_facts(run: str | Path | HasDatabase) -> RunFacts:
    """Ask a run's database everything at once, so that all numbers are of one moment.

    Raises as `database.queries.connect`.
    """
    with asking(run) as connection:
        document = json.loads(str(ask_one(connection, "SELECT document FROM runs")["document"]))
        axis = curves.read_axis(connection)
        return RunFacts(
            summary=_read_summary(connection, document),
            document=document,
            window_steps=axis.window_steps,
            windows=axis.windows,
            measures=curves.read_measures(connection, axis),
            reward_band=curves.read_reward_band(connection, axis),
            length_band=curves.read_length_band(connection, axis),
            step_parts=curves.read_step_parts(connection, axis),
            part_totals=curves.read_part_totals(connection),
            work=counts.read_work(connection),
            failed_rewards=counts.read_failed_rewards(connection),
            drops=curves.read_drops(connection, axis),
            staleness=counts.read_staleness(connection),
            fates=counts.read_fates(connection),
            stories=story.read_stories(connection),
            findings=_findings(run, document["settings"]["tree"]),
            event_kinds=counts.read_event_kinds(connection),
            events=counts.read_events(connection),
        )


def _findings(run: str | Path | HasDatabase, settings: Mapping[str, Any]) -> tuple[Finding, ...]:
    """As `agrpo diagnose` says it."""
    read = diagnose(recorded_history(run), settings, waiting=recorded_waiting(run, settings))
    return (*recorded_ending(run), *read)


def _read_summary(connection: DuckDBPyConnection, document: Mapping[str, Any]) -> Summary:
    totals = ask_one(connection, _TOTALS)
    run = ask_one(connection, "SELECT name, url FROM runs")
    return Summary(
        name=document.get("name") or run["name"],
        url=run["url"],
        created_at=document.get("created_at", ""),
        max_steps=document["settings"]["tree"].get("stop", {}).get("max_steps"),
        reward=RewardFigures(**ask_one(connection, _REWARD)),
        **totals,
    )
