"""Waiting groups: what is scored and no step has taken yet, which is all there is to read where a step never fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import Finding, Severity
from agrpo.instruments.diagnosis.reward_range import reward_range
from agrpo.records.score import Mark, fills_step

if TYPE_CHECKING:
    from agrpo.database.queries import HasDatabase

LEAST_STEPS = 2
"""Steps' worth of groups that wait before anything is said: with half of them equal, that many fill one step."""
MOST_PER_PLACE = 5.0
"""Groups that a place of the step costs; above it, steps fill slowly. As many without a filled place: never."""
BROKEN = 0.25
"""Of the reward's range: so far below what the last steps earned, an update broke the policy."""
FAILED = 0.5
"""From this share of failed rollouts on, failures are the cause."""
LEFT_OUT = 0.5
"""From this share of groups that filters leave out on, they are the cause."""
COLD = 0.05
"""A temperature up to here makes all rollouts of a group the same."""

_WAITING = """
    WITH waiting AS (
        SELECT ticket, marks
        FROM scored_groups ANTI JOIN live_step_groups USING (ticket)
        WHERE NOT list_has_any(marks, ['refused_prompt', 'filtered'])
    ),
    failures AS (
        SELECT ticket, rollout_index, num_prompt_tokens = 0 OR coalesce(bool_or(rewards.error IS NOT NULL), false) AS failed
        FROM waiting JOIN rollouts USING (ticket) LEFT JOIN rewards USING (ticket, rollout_index)
        GROUP BY ticket, rollout_index, num_prompt_tokens
    )
    SELECT
        marks, count(*) AS num_groups,
        (SELECT avg(reward) FROM waiting JOIN scores USING (ticket)) AS reward_mean,
        (SELECT avg(failed::INTEGER) FROM failures) AS failed_share
    FROM waiting
    GROUP BY marks
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """The scored groups that no step has consumed, without those whose prompt was not asked."""

    num_groups: int
    equal_share: float
    """Of the groups: those whose rollouts all earn the same reward."""
    left_out_share: float = 0.0
    """Of the groups: those that a filter leaves out, whatever their rewards."""
    reward_mean: float | None
    """Of their rollouts; None where none has a reward."""
    failed_share: float
    """Of their rollouts: the engine gave no answer, or a reward failed."""
    places: int
    """Of a step: `step.groups`."""
    places_filled: int
    """Of the next step, by these groups."""


def recorded_waiting(database: str | Path | HasDatabase, settings: Mapping[str, Any]) -> Waiting:
    """The groups that wait as the database has it. Raises as `database.queries.connect`."""
    from agrpo.database.queries import query

    evidence = Evidence(history=[], size=1, settings=settings)
    rows: list[dict[str, Any]] = query(database, _WAITING).to_pylist()
    groups = [(frozenset(map(Mark, row["marks"])), int(row["num_groups"])) for row in rows]
    num_groups = sum(number for _, number in groups)
    equal, left_out = (
        sum(number for marks, number in groups if mark in marks) for mark in (Mark.EQUAL_REWARDS, Mark.LEFT_OUT)
    )
    choice, places = evidence.zero_variance or "refill", int(evidence.setting("step.groups") or 0)
    return Waiting(
        num_groups=num_groups,
        equal_share=equal / num_groups if num_groups else 0.0,
        left_out_share=left_out / num_groups if num_groups else 0.0,
        reward_mean=rows[0]["reward_mean"] if rows else None,
        failed_share=(rows[0]["failed_share"] or 0.0) if rows else 0.0,
        places=places,
        places_filled=min(sum(number for marks, number in groups if fills_step(marks, choice)), places),
    )


def findings(evidence: Evidence, waiting: Waiting) -> Iterator[Finding]:
    """One reading at most, and none while steps fill as they should."""
    if waiting.num_groups < LEAST_STEPS * waiting.places or waiting.places_filled >= waiting.places:
        return
    if waiting.num_groups <= MOST_PER_PLACE * waiting.places_filled:
        return
    told = f"{waiting.num_groups:,} groups are scored and"
    if waiting.places_filled or waiting.num_groups < MOST_PER_PLACE * waiting.places:
        yield Finding(
            rule="agrpo/slow-filling",
            severity=Severity.NOTE,
            title="The step fills slowly",
            reading=f"{told} fill {waiting.places_filled} of the step's {waiting.places} places. {_why(waiting)}",
            change=_cure(evidence, waiting),
        )
    else:
        yield Finding(
            rule="agrpo/nothing-to-train",
            severity=Severity.WARNING,
            title="Nothing to train: no group fills a place of the step",
            reading=f"{told} none of them can be trained: the step's {waiting.places} places cannot be filled. {_why(waiting)}"
            f"{_before(evidence)}",
            change=_cure(evidence, waiting),
        )


def _why(waiting: Waiting) -> str:
    reward = (
        "no rollout has a reward" if waiting.reward_mean is None else f"the mean reward is {waiting.reward_mean:.2f}"
    )
    failed = f" {percent(waiting.failed_share)} of the rollouts failed." if waiting.failed_share else ""
    if waiting.left_out_share:
        failed = f" The run's filters leave out {percent(waiting.left_out_share)} of the groups.{failed}"
    if not waiting.equal_share:
        return f"None was left out for equal rewards; {reward}.{failed}"
    return f"In {percent(waiting.equal_share)} of the groups all rollouts earn the same reward; {reward}.{failed}"


def _before(evidence: Evidence) -> str:
    rewards = evidence.values("reward")
    return f" Groups of the last steps earned {fmean(rewards):.2f}." if rewards else ""


def _fell(evidence: Evidence, waiting: Waiting) -> bool:
    """Whether the groups that wait earn far less than those that the last steps consumed."""
    rewards, width = evidence.values("reward"), reward_range(evidence).width
    if not rewards or waiting.reward_mean is None or not width or waiting.places_filled:
        return False
    return fmean(rewards) - waiting.reward_mean >= BROKEN * width


def _cure(evidence: Evidence, waiting: Waiting) -> str:
    """By the likeliest cause: filters, failures, a broken policy, greedy sampling, a reward at one end, prompts."""
    if waiting.left_out_share >= LEFT_OUT:
        return "Loosen the filters ([[filters]]): the column left_out_by of scored_groups says which of them leaves out what."
    return _cure_of_rewards(evidence, waiting)


def _cure_of_rewards(evidence: Evidence, waiting: Waiting) -> str:
    if waiting.failed_share >= FAILED or not waiting.equal_share:
        return "See what fails: agrpo questions RUN failed_rewards for rewards; agrpo watch RUN for the engine."
    if _fell(evidence, waiting):
        return (
            f"Lower {evidence.named('optimizer.learning_rate')} and start again from the model of before the fall: the last "
            "updates broke the policy."
        )
    temperature = evidence.setting("engine.temperature")
    if temperature is not None and temperature <= COLD:
        return (
            f"Raise {evidence.named('engine.temperature')}: near 0 all rollouts of a prompt are the same; 1 samples from the "
            "policy itself."
        )
    limits = reward_range(evidence)
    if waiting.reward_mean is not None and limits.known and limits.near_top(waiting.reward_mean):
        return "The prompts are solved: stop here, or go on with harder ones ([prompts])."
    if waiting.reward_mean is not None and limits.known and limits.near_bottom(waiting.reward_mean):
        return (
            "Read rollouts first: does the reward find the answer in them ([[rewards]])? Then try easier prompts ([prompts]) "
            "or a better start (model.path)."
        )
    return "Read rollouts: is the reward constant, or too coarse ([[rewards]])? Are the prompts all too easy or too hard ([prompts])?"
