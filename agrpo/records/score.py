"""Scores: what the rewards said of a group, and the marks that follow from it. Facts, recorded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from agrpo.records.pace import Pace
from agrpo.records.rollout import Stay, ToolCall

Extra = str | float | int | bool | None
"""What a reward may note of a rollout."""

T = TypeVar("T")


class Mark(StrEnum):
    """What a group's scores mean for training, whatever the run's state: pure per group."""

    EQUAL_REWARDS = "equal_rewards"
    """All scored rollouts have the same reward, or the same value of `step.zero_variance_reward`: nothing to prefer."""
    TOO_FEW_SCORES = "too_few_scores"
    """Fewer scored rollouts than the run's advantage can compare."""
    LEFT_OUT = "left_out"
    """One of the run's filters leaves the group out."""
    REFUSED_PROMPT = "refused_prompt"
    """The prompt was refused before generation; there are no rollouts."""
    FILTERED = "filtered"
    """The run's own `filter_prompt` left the prompt out of the epoch; there are no rollouts."""
    OVERSIZE = "oversize"
    """Every training sequence is longer than a micro-batch may be."""
    FAILED = "failed"
    """No rollout came back from the engine."""


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Stands in the place of a value that a reward could not give, among others that it could."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one reward said of a group. Lists have one entry per rollout."""

    reward: str
    """Name of the reward."""
    weight: float
    values: list[float | None]
    """None where this reward has nothing to say."""
    errors: list[str | None]
    """Why a value is missing, where something failed."""
    duration_seconds: float = 0.0
    extras: dict[str, list[Extra]] = field(default_factory=dict[str, "list[Extra]"])
    """What it noted of each rollout, by column; None where it noted nothing."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Finite numbers that it noted of the whole call."""

    def spread(self, judged: Sequence[bool]) -> Score:
        """Of these rollouts those that it judged: its lists with None for the others."""
        return replace(
            self,
            values=_spread(self.values, judged),
            errors=_spread(self.errors, judged),
            extras={column: _spread(values, judged) for column, values in self.extras.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How the scorer was doing when it took a group."""

    seconds: float
    """That all rewards together took."""
    wait_seconds: float
    """From the group's end to its scoring."""
    queue_size: int
    """Other finished groups that waited for scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A group's scores, without its tokens. Lists have one entry per rollout."""

    ticket: int
    prompt_id: str
    model_version: int
    """Policy version of the group's first sampled token."""
    model_attempt: int = 0
    """Attempt that published it."""
    model_step: int | None = None
    """Optimizer step of its weights. None in groups that no generator made."""
    model_ordinal: int | None = None
    """Publishes of the history up to that step; None: `model_version`."""
    base: int = 0
    """Attempt under whose base the group was claimed."""
    rewards: list[float]
    """Weighted sum over the rewards that gave a value; NaN where none did."""
    scores: list[Score]
    marks: frozenset[Mark] = frozenset()
    refusal: str | None = None
    left_out_by: str | None = None
    """Name of the first of the run's filters that leaves the group out."""
    num_prompt_tokens: list[int] = field(default_factory=list)
    num_completion_tokens: list[int] = field(default_factory=list)
    """Generated tokens of all turns."""
    num_forwarded_tokens: list[int] = field(default_factory=list)
    """Tokens of all training sequences of the rollout."""
    terminated: list[bool] = field(default_factory=list)
    """Whether the model ended the rollout's last turn itself."""
    truncated: list[bool] = field(default_factory=list[bool])
    """Whether the rollout was cut for its length."""
    duplicates: list[bool] = field(default_factory=list)
    """Whether an earlier rollout of the group has the same tokens."""
    num_turns: list[int] = field(default_factory=list)
    num_sequences: list[int] = field(default_factory=list)
    """Training sequences of the rollout that have a trained token."""
    duration_seconds: list[float] = field(default_factory=list)
    """Of the rollout, from its submission to its end."""
    drift_tokens: list[list[int]] = field(default_factory=list[list[int]])
    """As `drift_of` says, per transition between turns."""
    tool_calls: list[list[ToolCall]] = field(default_factory=list[list[ToolCall]])
    loop_exhausted: list[bool] = field(default_factory=list[bool])
    """Whether the rollout was cut while it still called tools."""
    stays: list[Stay | None] = field(default_factory=list["Stay | None"])
    """In environments."""
    generated_at: float = 0.0
    """Unix seconds."""
    scored_at: float = 0.0
    """Unix seconds."""
    pace: Pace | None = None
    scoring: Scoring | None = None

    @property
    def ordinal(self) -> int:
        """What staleness counts from."""
        return self.model_version if self.model_ordinal is None else self.model_ordinal


def _spread(values: Sequence[T], judged: Sequence[bool]) -> list[T | None]:
    left = iter(values)
    return [next(left) if own else None for own in judged]


def total_rewards(scores: list[Score], own: list[float | None]) -> list[float]:
    """Weighted sum per rollout over the sources that gave a value, NaN where none did (A-117 to A-119).

    `own`: each rollout's own reward, at weight 1.
    """
    totals: list[float] = []
    for index, brought in enumerate(own):
        given = [score.weight * value for score in scores if (value := score.values[index]) is not None]
        if brought is not None:
            given.append(brought)
        totals.append(math.fsum(given) if given else math.nan)
    return totals


def values_of(scores: Sequence[Score], reward: str | None) -> list[float] | None:
    """What the reward of that name gave each rollout, NaN where it gave nothing; None: the group has no such reward."""
    named = next((score for score in scores if score.reward == reward), None)
    return None if named is None else [math.nan if value is None else value for value in named.values]


def marks_of(rewards: list[float], tested: list[float] | None = None, min_group: int = 2) -> frozenset[Mark]:
    """The marks a group's summed rewards give it (A-123, A-124).

    `tested`: values that have to differ in their place (P-912). `min_group`: fewest scored rollouts; one alone is equal to
    none (P-915).
    """
    scored = [reward for reward in rewards if not math.isnan(reward)]
    if len(scored) < min_group:
        return frozenset({Mark.TOO_FEW_SCORES})
    compared = scored if tested is None else [value for value in tested if not math.isnan(value)]
    differ = bool(compared) and min(compared) != max(compared)
    return frozenset() if differ or len(scored) < 2 else frozenset({Mark.EQUAL_REWARDS})


NOT_ASKED = frozenset({Mark.REFUSED_PROMPT, Mark.FILTERED})
"""Marks of groups that have no rollouts, since their prompt was not asked."""
UNTRAINABLE = NOT_ASKED | {Mark.OVERSIZE, Mark.FAILED}
"""Marks of groups that could not be generated or trained at all."""
_NEVER_FILLS = UNTRAINABLE | {Mark.LEFT_OUT}


def fills_step(marks: frozenset[Mark], zero_variance: str) -> bool:
    """Whether a group with these marks takes one of the places of a step (`step.zero_variance`).

    `refill` gives places only to groups that can be told apart; `keep` also to groups with equal rewards; `drop` also
    to groups with too few scores. What a filter leaves out, or could not be generated or trained at all, never takes one.
    """
    if marks & _NEVER_FILLS:
        return False
    if zero_variance == "refill":
        return not marks
    return zero_variance == "drop" or Mark.TOO_FEW_SCORES not in marks
