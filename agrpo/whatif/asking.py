"""Asking a what-if: each recorded group is judged again, and what came of it is written once, so that it can go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agrpo.config import RewardSection
from agrpo.filters import left_out_by, load_filters
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.whatifs import WhatIfs
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.group_rewards import GroupRewards
from agrpo.records.score import UNTRAINABLE, Mark, Score, ScoredGroup, marks_of, total_rewards, values_of
from agrpo.records.whatif import WhatIfGroup, WhatIfRollout, optional, whatif_from_arrow, whatif_to_arrow
from agrpo.rewards.calling import state_at_start
from agrpo.rewards.sandbox import RewardRunner
from agrpo.whatif.question import Question

MOST_AT_ONCE = 16
"""Groups being judged at a time."""
REASONS = (
    *(Mark.REFUSED_PROMPT, Mark.FILTERED, Mark.FAILED),
    *(Mark.OVERSIZE, Mark.LEFT_OUT, Mark.TOO_FEW_SCORES, Mark.EQUAL_REWARDS),
)
"""What keeps a group from being trained, the strongest first, as the learner has it."""

Told = Callable[[int, int], None]
"""Hears how many groups are answered, and of how many."""


def answer(folder: RunFolder, question: Question, *, limit: int | None = None, told: Told = lambda *_: None) -> None:
    """Judge the scored groups that the what-if lacks, the newest first; of the newest `limit` where that is given.

    Raises `RewardError` where the reward fails on every completion of group after group, or if `on_error` is "stop". What
    was written stays, and the next call goes on from there.
    """
    asyncio.run(_Asking(folder, question, told).answer(limit))


def answered(folder: RunFolder, name: str) -> Iterator[WhatIfGroup]:
    """Every group of the what-if, by ticket."""
    topic = WhatIfs(folder.filesystem).groups(name)
    for ticket in topic.numbers():
        yield whatif_from_arrow(topic.demand(ticket), topic.key(ticket))


@dataclass(frozen=True, kw_only=True)
class _Judgement:
    """What a group's scores would have been. Lists have one entry per rollout."""

    rewards: list[float]
    scores: list[Score]
    errors: list[str | None]
    marks: frozenset[Mark]


class _Asking:
    """One call's work."""

    def __init__(self, folder: RunFolder, question: Question, told: Told) -> None:
        self.folder = folder
        self.question = question
        self.topic = WhatIfs(folder.filesystem).groups(question.whatif.name)
        self.filters = load_filters(question.recorded.filters)
        self.told = told
        self.num_done = self.num_wanted = 0

    async def answer(self, limit: int | None) -> None:
        wanted, there = self._that_count()[::-1][:limit], set(self.topic.numbers())
        missing = [ticket for ticket in wanted if ticket not in there]
        self.num_wanted, self.num_done = len(wanted), len(wanted) - len(missing)
        reward = self.question.reward
        runner = self._runner(reward) if reward else None
        waiting = iter(missing)
        working = [asyncio.create_task(self._work(waiting, runner)) for _ in missing[:MOST_AT_ONCE]]
        try:
            await asyncio.gather(*working)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            if runner is not None:
                await runner.close()

    def _runner(self, reward: RewardSection) -> RewardRunner:
        asked = self.question.asked
        begun = state_at_start(asked, self.folder.document().get("prompts_per_epoch"))
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        return RewardRunner(reward, reproducible=asked.sampling.reproducible, begun=begun, gpus=gpus)

    def _that_count(self) -> list[int]:
        """The scored groups but those that the run gave up by going back: their prompts are asked again."""
        scored = self.folder.scored.numbers()
        void = Rewinds(self.folder.bases(), self.folder.claims.base_of).void_tickets(scored)
        return [ticket for ticket in scored if ticket not in void]

    async def _work(self, waiting: Iterator[int], runner: RewardRunner | None) -> None:
        for ticket in waiting:
            self.topic.publish(ticket, whatif_to_arrow(await self._group(ticket, runner)))
            self.num_done += 1
            self.told(self.num_done, self.num_wanted)
            await asyncio.sleep(0)  # where no reward is awaited, the others would never be told to end

    async def _group(self, ticket: int, runner: RewardRunner | None) -> WhatIfGroup:
        scored = scored_from_arrow(self.folder.scored.demand(ticket), self.folder.scored.key(ticket))
        judged = await self._judge(scored, runner)
        (before,) = self.question.recorded.advantage([GroupRewards.of(scored.scores, scored.rewards)])
        (after,) = self.question.asked.advantage([GroupRewards.of(judged.scores, judged.rewards)])
        return WhatIfGroup(
            ticket=ticket,
            drop_reason_before=self._drop_reason(scored.marks),
            drop_reason=self._drop_reason(judged.marks),
            rollouts=[
                WhatIfRollout(
                    rollout_index=index,
                    reward_before=optional(scored.rewards[index]),
                    reward=optional(judged.rewards[index]),
                    advantage_before=float(before[index]),
                    advantage=float(after[index]),
                    error=judged.errors[index],
                )
                for index in range(len(scored.rewards))
            ],
        )

    async def _judge(self, scored: ScoredGroup, runner: RewardRunner | None) -> _Judgement:
        """As recorded where no other reward is asked, or no rollout has an answer."""
        as_recorded = _Judgement(
            rewards=scored.rewards,
            scores=scored.scores,
            errors=[None] * len(scored.rewards),
            marks=scored.marks,
        )
        if runner is None:
            return as_recorded
        ticket = scored.ticket
        group = group_from_arrow(self.folder.groups.demand(ticket), self.folder.groups.key(ticket))
        if all(rollout.failed for rollout in group.rollouts):
            return as_recorded
        score = await _score(group, runner)
        scores = [*(scored.scores if self.question.whatif.keep else ()), score]
        rewards = total_rewards(scores, group.rollout_rewards)
        return _Judgement(
            rewards=rewards, scores=scores, errors=score.errors, marks=self._marks(scored, scores, rewards)
        )

    def _marks(self, scored: ScoredGroup, scores: list[Score], rewards: list[float]) -> frozenset[Mark]:
        """By the run's own rules and filters. A reward that they name and that is not asked is the sum."""
        run = self.question.recorded
        tested = values_of(scores, run.step.zero_variance_reward)
        marks = marks_of(rewards, tested, run.advantage.min_group) | (scored.marks & {Mark.OVERSIZE})
        if marks & UNTRAINABLE:
            return marks
        judged = replace(scored, rewards=rewards, scores=scores, marks=marks, left_out_by=None)
        return marks | ({Mark.LEFT_OUT} if left_out_by(self.filters, judged) is not None else set())

    def _drop_reason(self, marks: frozenset[Mark]) -> str | None:
        """Why scores alone keep a group from being trained, by the run's own `step.zero_variance`."""
        kept = frozenset({Mark.EQUAL_REWARDS}) if self.question.recorded.zero_variance == "keep" else frozenset[Mark]()
        return next((mark.value for mark in REASONS if mark in marks - kept), None)


async def _score(group: RolloutGroup, runner: RewardRunner) -> Score:
    """The reward's values for the rollouts that have an answer, spread over all."""
    has_answer = [not rollout.failed for rollout in group.rollouts]
    score = await runner.score(replace(group, rollouts=[rollout for rollout in group.rollouts if not rollout.failed]))
    return score.spread(has_answer)
