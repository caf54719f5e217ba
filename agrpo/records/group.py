"""A group: one prompt and its rollouts, the unit that is claimed, queued, scored and trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agrpo.records.pace import Pace
from agrpo.records.prompt import Message, Prompt
from agrpo.records.rollout import Rollout
from agrpo.records.sample import TokenSequence, sequences_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """One prompt and its rollouts. The documented lists (A-233 to A-237) are views of the rollouts."""

    ticket: int
    """Number of the group in the run, and of its slot in every topic."""
    prompt: Prompt
    rollouts: list[Rollout]
    model_version: int
    """Policy version of the first sampled token."""
    model_attempt: int = 0
    """Attempt that published it."""
    model_step: int | None = None
    """Optimizer step of its weights. None in groups that no generator made."""
    model_ordinal: int | None = None
    """Publishes of the history up to that step; None: `model_version`."""
    base: int = 0
    """Attempt under whose base the group was claimed."""
    claim_try: int = 0
    generator: str = ""
    """Incarnation of the generator."""
    refusal: str | None = None
    """Why the prompt was refused; then there are no rollouts."""
    filtered: bool = False
    """Refused by the run's own `filter_prompt`."""
    claimed_at: float = 0.0
    """Unix seconds."""
    finished_at: float = 0.0
    """Unix seconds."""
    queued_at: float = 0.0
    """When it was queued for scoring, by the generator's monotonic clock."""
    pace: Pace | None = None
    """None in groups that no generator made."""
    rewards: np.ndarray | None = None
    """Summed rewards, NaN where no source scored; set before advantages are computed."""
    env_rewards: list[tuple[type, float] | None] = field(default_factory=list)
    """Class and reward of each rollout's environment, None where it gave none; set before advantages are computed."""

    @property
    def group_id(self) -> int:
        return self.ticket

    @property
    def row_index(self) -> int:
        return self.prompt.row_index

    @property
    def prompts(self) -> list[list[Message]]:
        """What each rollout was asked."""
        return [self.prompt.messages if rollout.prompt is None else rollout.prompt for rollout in self.rollouts]

    @property
    def completions(self) -> list[list[Message]]:
        return [rollout.completion for rollout in self.rollouts]

    @property
    def completions_ids(self) -> list[list[int]]:
        return [rollout.completion_ids for rollout in self.rollouts]

    @cached_property
    def completions_sequences(self) -> list[list[TokenSequence]]:
        return [sequences_of(rollout) for rollout in self.rollouts]

    @property
    def tool_call_counts(self) -> list[int]:
        return [rollout.tool_call_count for rollout in self.rollouts]

    @property
    def tool_failure_counts(self) -> list[int]:
        return [rollout.tool_failure_count for rollout in self.rollouts]

    @property
    def rollout_rewards(self) -> list[float | None]:
        return [rollout.reward for rollout in self.rollouts]

    @property
    def reward_kwargs(self) -> dict[str, list[Any]]:
        """The row's other columns, and those that a `rollout_func` returned, one list entry per rollout."""
        own = dict.fromkeys(name for rollout in self.rollouts for name in rollout.columns)
        return {
            **{name: [value for _ in self.rollouts] for name, value in self.prompt.facts.items()},
            **{name: [rollout.columns.get(name) for rollout in self.rollouts] for name in own},
        }
