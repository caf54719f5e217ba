"""The scorer: reads a finished group, lets every reward judge it, publishes the scores and the marks they give.

Several scorers share the tickets out among themselves by number; the share of one that is gone is anybody's. Who is
thought gone and is not does the same work twice, and its scores count if they are the first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from agrpo.config import RunConfig, load_settings
from agrpo.errors import DeadlineExceeded
from agrpo.filters import Filter, left_out_by, load_filters
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow, scored_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Hint
from agrpo.records.rollout import StopReason
from agrpo.records.sample import drift_of, sequences_of
from agrpo.records.score import UNTRAINABLE, Mark, Score, ScoredGroup, Scoring, marks_of, total_rewards, values_of
from agrpo.rewards.calling import state_at_start
from agrpo.rewards.sandbox import RewardRunner
from agrpo.stages.context import StageContext
from agrpo.stages.names import worker_name
from agrpo.stages.silence import Silence

logger = logging.getLogger(__name__)

SEES_GPUS = False
"""Async rewards run in the stage's own process: a model for them is served elsewhere too (A-205). A reward that stays loaded
on a GPU has a process that sees them."""
POLL_SECONDS = 0.01
BEAT_SECONDS = 1.0
MOST_AT_ONCE = 16
"""Groups being scored at a time."""
SILENT_SECONDS = 3.0
"""How long a scorer says nothing until others take its share. It speaks every `BEAT_SECONDS`, however long rewards take."""


def run(context: StageContext) -> None:
    """Score groups until the learner has its last step or the run is asked to stop."""
    folder = RunFolder.open(context.run_url)
    config = RunConfig.build(load_settings(folder.document()))
    asyncio.run(_Scorer(context, folder, config).score())


class _Scorer:
    """One incarnation's loop. Stateless: what has no scored slot is scored."""

    def __init__(self, context: StageContext, folder: RunFolder, config: RunConfig) -> None:
        self.context = context
        self.folder = folder
        self.config = config
        begun = state_at_start(config, folder.document().get("prompts_per_epoch"))
        self.runners = [
            RewardRunner(reward, reproducible=config.sampling.reproducible, begun=begun, gpus=context.gpus)
            for reward in config.rewards
        ]
        self.scored_group = partial(
            scored_group,
            micro_tokens=config.step.micro_tokens,
            min_group=config.advantage.min_group,
            zero_variance_reward=config.step.zero_variance_reward,
            filters=load_filters(config.filters),
        )
        self.running: dict[int, asyncio.Task[None]] = {}
        self.finished: set[int] = set()
        self.floor = 0
        self.hint: Hint | None = None
        self.silence = Silence(folder, "scorer")
        self.told_at = 0.0
        self.moved_at = time.monotonic()

    async def score(self) -> None:
        # Rewards are loaded while the other stages load their models.
        starting = [asyncio.create_task(runner.start()) for runner in self.runners]
        try:
            while not self.context.stop.is_set() and not self._is_over():
                for task in [task for task in starting if task.done()]:
                    starting.remove(task)
                    task.result()
                self._start_waiting()
                for ticket in [ticket for ticket, task in self.running.items() if task.done()]:
                    self.running.pop(ticket).result()
                    self.moved_at = time.monotonic()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            unfinished = [*starting, *self.running.values()]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
            await asyncio.gather(*(runner.close() for runner in self.runners))

    def _is_over(self) -> bool:
        """Look at the learner's word, and say what is waited for, every second."""
        if time.monotonic() - self.told_at < BEAT_SECONDS:
            return False
        self.told_at = time.monotonic()
        waited = self.told_at - self.moved_at
        if self.config.workers.scorers > 1:
            self.silence.look()
        self.folder.beat(self.context.stage, None if self.running else "a finished group", waited)
        if waited > self.config.stop.stall_seconds:
            raise DeadlineExceeded(
                f"waited {waited:.0f} s for {'rewards' if self.running else 'a finished group'}; the limit is "
                f"{self.config.stop.stall_seconds:.0f} s (stop.stall_seconds)"
            )
        hint = self.folder.hint()
        if hint != self.hint:
            self.hint, self.moved_at = hint, self.told_at
        if hint is not None:
            self.floor = max(self.floor, hint.floor)
            self.finished = {ticket for ticket in self.finished if ticket >= self.floor}
        return self.folder.has_finished(hint)

    def _start_waiting(self) -> None:
        known = self.finished | self.running.keys()
        waiting = [t for t in self.folder.groups.numbers(self.floor) if t not in known and self._is_ours(t)]
        if not waiting or len(self.running) >= MOST_AT_ONCE:
            return
        self.finished |= set(self.folder.scored.numbers(self.floor))
        waiting = [ticket for ticket in waiting if ticket not in self.finished]
        for place, ticket in enumerate(waiting[: MOST_AT_ONCE - len(self.running)], 1):
            self.running[ticket] = asyncio.create_task(self._score_group(ticket, len(waiting) - place))
            self.moved_at = time.monotonic()

    def _is_ours(self, ticket: int) -> bool:
        """Whether it is this scorer's to score: by its number, or because nobody else is there to do it."""
        whose = worker_name("scorer", ticket % self.config.workers.scorers + 1)
        return whose == self.context.stage or self.silence.seconds(whose) > SILENT_SECONDS

    async def _score_group(self, ticket: int, queue_size: int) -> None:
        group = group_from_arrow(self.folder.groups.demand(ticket), self.folder.groups.key(ticket))
        began, waited = time.monotonic(), max(0.0, time.time() - group.finished_at)
        scores = await self._judge(group)
        scoring = Scoring(seconds=time.monotonic() - began, wait_seconds=waited, queue_size=queue_size)
        scored = replace(self.scored_group(group, scores), scoring=scoring)
        self.folder.scored.publish(ticket, scored_to_arrow(scored))
        self.finished.add(ticket)

    async def _judge(self, group: RolloutGroup) -> list[Score]:
        """Every reward side by side, and what environments paid, over the rollouts that have an answer."""
        answered = [rollout for rollout in group.rollouts if not rollout.failed]
        if not answered:
            return []
        judged = replace(group, rollouts=answered)
        scores = await asyncio.gather(*(runner.score(judged) for runner in self.runners))
        brought = environment_score(judged)
        return [_spread(score, group) for score in ([*scores, brought] if brought else scores)]


def environment_score(group: RolloutGroup) -> Score | None:
    """What the rollouts' environment paid, as one more reward of weight 1; None: it pays nothing (A-255, A-256)."""
    stays = [rollout.stay for rollout in group.rollouts]
    asked = [stay for stay in stays if stay is not None and stay.reward_seconds is not None]
    if not asked:
        return None
    return Score(
        reward=asked[0].environment,
        weight=1.0,
        values=[None if stay is None else stay.reward for stay in stays],
        errors=[None if stay is None else stay.reward_error for stay in stays],
        duration_seconds=sum(stay.reward_seconds or 0.0 for stay in asked),
    )


def scored_group(
    group: RolloutGroup,
    scores: list[Score],
    micro_tokens: int,
    *,
    min_group: int = 2,
    zero_variance_reward: str | None = None,
    filters: Mapping[str, Filter] | None = None,
) -> ScoredGroup:
    """The group's scores, marks and lengths. Pure: the same group and scores always give the same record but its time.

    `min_group`: fewest scored rollouts that can be compared. `zero_variance_reward`: the one that has to differ; None: the
    sum. Raises `FilterError`.
    """
    sequences = [sequences_of(rollout) for rollout in group.rollouts]
    rewards = total_rewards(scores, group.rollout_rewards)
    lengths = [len(sequence.tokens) for own in sequences for sequence in own]
    marks = set(marks_of(rewards, values_of(scores, zero_variance_reward), min_group))
    if group.refusal is not None:
        marks = {Mark.FILTERED if group.filtered else Mark.REFUSED_PROMPT}
    elif all(rollout.failed for rollout in group.rollouts):
        marks = {Mark.FAILED}
    elif lengths and min(lengths) > micro_tokens:
        marks.add(Mark.OVERSIZE)
    scored = ScoredGroup(
        ticket=group.ticket,
        prompt_id=group.prompt.id,
        model_version=group.model_version,
        model_attempt=group.model_attempt,
        model_step=group.model_step,
        model_ordinal=group.model_ordinal,
        base=group.base,
        rewards=rewards,
        scores=scores,
        marks=frozenset(marks),
        refusal=group.refusal,
        num_prompt_tokens=[len(rollout.turns[0].prompt_ids) if rollout.turns else 0 for rollout in group.rollouts],
        num_completion_tokens=[len(rollout.completion_ids) for rollout in group.rollouts],
        num_forwarded_tokens=[sum(len(sequence.tokens) for sequence in own) for own in sequences],
        terminated=[rollout.terminated for rollout in group.rollouts],
        truncated=[rollout.stop_reason is StopReason.LENGTH for rollout in group.rollouts],
        duplicates=_duplicates(group),
        num_turns=[len(rollout.turns) for rollout in group.rollouts],
        num_sequences=[sum(sequence.num_trained > 0 for sequence in own) for own in sequences],
        duration_seconds=[rollout.duration_seconds for rollout in group.rollouts],
        drift_tokens=[drift_of(rollout) for rollout in group.rollouts],
        tool_calls=[rollout.tool_calls for rollout in group.rollouts],
        loop_exhausted=[rollout.stop_reason is StopReason.MAX_TURNS for rollout in group.rollouts],
        stays=[rollout.stay for rollout in group.rollouts],
        generated_at=group.finished_at,
        scored_at=time.time(),
        pace=group.pace,
    )
    name = left_out_by(filters or {}, scored) if not marks & UNTRAINABLE else None
    return scored if name is None else replace(scored, marks=scored.marks | {Mark.LEFT_OUT}, left_out_by=name)


def _duplicates(group: RolloutGroup) -> list[bool]:
    seen: set[tuple[int, ...]] = set()
    duplicates: list[bool] = []
    for rollout in group.rollouts:
        key = tuple(rollout.completion_ids)
        duplicates.append(bool(rollout.turns) and key in seen)
        seen.add(key)
    return duplicates


def _spread(score: Score, group: RolloutGroup) -> Score:
    """Scores of the answered rollouts as scores of all, with the failure as the reason of the others."""
    spread = score.spread([not rollout.failed for rollout in group.rollouts])
    reasons = [
        rollout.error if rollout.failed else error for rollout, error in zip(group.rollouts, spread.errors, strict=True)
    ]
    return replace(spread, errors=reasons)
