"""Scoring with one reward: its values for a group, the reasons of those that are missing, and when to stop the run."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agrpo.errors import RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import Rollout
from agrpo.records.score import Score
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards.calling import state_of
from agrpo.rewards.sandbox.calls import Calls, open_calls
from agrpo.rewards.sandbox.limits import Limits
from agrpo.rewards.sandbox.verdicts import CallFailed, Judged, Verdict, judged_alone

if TYPE_CHECKING:
    from agrpo.config import RewardSection

logger = logging.getLogger(__name__)

FAILED_GROUPS_TO_STOP = 8
"""Groups in a row of which a reward judged no completion. So long a streak is the reward's fault, not the texts'."""
REASONS_TOLD = 20
"""Different reasons that are said aloud; every one is recorded."""


class RewardRunner:
    """Runs one reward of a run. All its methods run on one asyncio loop; several runners may run side by side."""

    def __init__(
        self,
        section: RewardSection,
        *,
        reproducible: bool = False,
        begun: TrainerState | None = None,
        gpus: str | None = "",
    ) -> None:
        """`begun`: how far the run was before its first step.

        `gpus`: what `CUDA_VISIBLE_DEVICES` is to a reward that asks for a GPU; None: it sees all.
        """
        self._section = section
        self._begun = begun or TrainerState()
        self._gpus = gpus
        self._limits = Limits.of(section, reproducible=reproducible)
        self._calls: Calls | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._failed_groups = 0
        self._told: set[str] = set()

    async def start(self) -> None:
        """Start the reward's process, so that the first group need not wait for it.

        Raises `RewardError` if the reward cannot be loaded.
        """
        await self._open()

    async def score(self, group: RolloutGroup) -> Score:
        """The reward's values for every rollout of the group. The first call starts the reward's process, unless `start` did.

        Raises `RewardError` if the reward cannot be loaded, if it failed and `on_error` is "stop", or if it failed on
        every completion of 8 groups in a row.
        """
        began = time.monotonic()
        judged = await self._judged(group) if group.rollouts else Judged(verdicts=[])
        verdicts = judged.verdicts
        for rollout, verdict in zip(group.rollouts, verdicts, strict=True):
            if verdict.error is not None:
                self._stop_if_asked(group, f"completion {rollout.index}: {verdict.error}")
        self._count(verdicts)
        return Score(
            reward=self._section.name,
            weight=self._section.weight,
            values=[verdict.value for verdict in verdicts],
            errors=[verdict.error for verdict in verdicts],
            duration_seconds=time.monotonic() - began,
            extras=judged.notes.extras,
            metrics=judged.notes.metrics,
        )

    async def close(self) -> None:
        """End the reward's process and all it started. Calls that still run are given up."""
        self._closed = True
        async with self._opening:
            if self._calls is not None:
                await self._calls.close()
                self._calls = None

    async def _judged(self, group: RolloutGroup) -> Judged:
        """What a call that failed noted counts no more than its values."""
        calls, state = await self._open(), state_of(group, self._begun)
        shown = replace(group, rollouts=[_without_candidates(rollout) for rollout in group.rollouts])
        try:
            return await calls.judge(shown, state)
        except CallFailed as failure:
            self._stop_if_asked(group, str(failure))
            if failure.is_final or calls.whole_group or len(shown.rollouts) == 1:
                return Judged(verdicts=[Verdict(value=None, error=str(failure)) for _ in shown.rollouts])
        alone = [replace(shown, rollouts=[rollout]) for rollout in shown.rollouts]
        return judged_alone(await asyncio.gather(*(_judge_alone(calls, one, state) for one in alone)))

    async def _open(self) -> Calls:
        async with self._opening:
            if self._closed:
                raise RewardError(f'reward "{self._section.name}" was asked to score after it was closed')
            if self._calls is None:
                self._calls = await open_calls(self._section, self._limits, self._gpus)
            return self._calls

    def _stop_if_asked(self, group: RolloutGroup, reason: str) -> None:
        if self._section.on_error == "stop":
            raise RewardError(
                f'reward "{self._section.name}" failed on group {group.ticket}: {reason}; mend it, or set '
                'rewards.on_error = "record" to go on without its value'
            )

    def _count(self, verdicts: list[Verdict]) -> None:
        reasons = [verdict.error for verdict in verdicts if verdict.error is not None]
        if not verdicts:
            return
        for reason in set(reasons) - self._told:
            if len(self._told) < REASONS_TOLD:
                logger.warning("reward %s gave a completion no value: %s", self._section.name, reason)
                self._told.add(reason)
        self._failed_groups = self._failed_groups + 1 if len(reasons) == len(verdicts) else 0
        if self._failed_groups >= FAILED_GROUPS_TO_STOP:
            raise RewardError(
                f'reward "{self._section.name}" failed on every completion of {self._failed_groups} groups in a row, '
                f"the last time because {reasons[-1]}; mend the reward, or raise its limits if they are the reason"
            )


async def _judge_alone(calls: Calls, group: RolloutGroup, state: TrainerState) -> Judged:
    try:
        return await calls.judge(group, state)
    except CallFailed as failure:
        return Judged(verdicts=[Verdict(value=None, error=str(failure))])


def _without_candidates(rollout: Rollout) -> Rollout:
    """Candidate sets and top log-probs are most of a group's bytes and say nothing of the text."""
    turns = [replace(turn, output_sampling_mask=None, output_sampler_logprobs=None) for turn in rollout.turns]
    return replace(rollout, turns=turns)
