"""Choosing: which scored groups a step takes, and which it drops, each with its reason.

What comes out is told to generators at once, and consumes nothing: the plan of the step does (`stages/planning.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from agrpo.config import RunConfig
from agrpo.errors import HookError
from agrpo.records.progress import Drop, DropReason
from agrpo.records.score import Mark, ScoredGroup, fills_step
from agrpo.stages.clock import StepClock
from agrpo.stages.shelf import Shelf
from agrpo.staleness import staleness
from agrpo.waiting import wait_for

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
WITHOUT_SAMPLES = "with every rollout cut or masked"
_REASONS = {
    Mark.REFUSED_PROMPT: DropReason.REFUSED_PROMPT,
    Mark.FILTERED: DropReason.FILTERED,
    Mark.FAILED: DropReason.FAILED,
    Mark.OVERSIZE: DropReason.OVERSIZE,
    Mark.LEFT_OUT: DropReason.LEFT_OUT,
    Mark.TOO_FEW_SCORES: DropReason.TOO_FEW_SCORES,
    Mark.EQUAL_REWARDS: DropReason.EQUAL_REWARDS,
}
"""Why a marked group is dropped, the strongest reason first."""


@dataclass(kw_only=True)
class Chosen:
    """The groups of a step, and what was dropped on the way."""

    groups: list[ScoredGroup] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    dropped: list[ScoredGroup] = field(default_factory=list)
    num_replaced: int = 0
    """Dropped groups that took no place of the step."""
    num_void: int = 0
    """Of the dropped, tickets whose prompts are given out again."""
    exhausted: bool = False
    """No further prompt is to come."""
    spent: bool = False
    """See `Chooser.spent`."""
    untrained_in_a_row: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why groups gave nothing to train, since this learner's last one that did."""
    num_queued_samples: int = 0
    """Samples that waited when the first group was looked for."""

    @property
    def consumed(self) -> list[ScoredGroup]:
        return [*self.groups, *self.dropped]

    @property
    def places(self) -> int:
        """Places of the step that are taken, by trained groups and by dropped ones that count."""
        return len(self.groups) + len(self.drops) - self.num_replaced


class Tell(Protocol):
    """Hears the tickets taken for a step, and how many of them took no place in it."""

    def __call__(self, taken: set[int], dropped: int = 0, *, at_once: bool = False) -> None: ...


class Chooser:
    """Takes scored groups for a step: in ticket order in lockstep, lowest readable first otherwise."""

    def __init__(
        self,
        config: RunConfig,
        shelf: Shelf,
        clock: StepClock,
        *,
        num_prompts: int | None,
        num_void: int = 0,
        prompts_per_epoch: int,
        stop: threading.Event,
        tell: Tell,
        beat: Callable[[str, float], None],
    ) -> None:
        """`num_prompts`: prompts of the whole run, where that is bounded. `num_void`: consumed tickets that asked none.

        `tell` hears the tickets taken so far for the step and how many of them took no place, so that generators know how
        far they may go. `beat` is told every second what the step waits for, and for how long.
        """
        self._config = config
        self._shelf = shelf
        self._clock = clock
        self._num_prompts = num_prompts
        self._num_void = num_void
        self._prompts_per_epoch = prompts_per_epoch
        self._stop = stop
        self._tell = tell
        self._beat = beat
        self._began = self._told = 0.0
        self._filtered: Counter[int] = Counter()
        """Prompts that `filter_prompt` left out, by epoch."""
        self._reasons: Counter[str] = Counter()
        self.untrained_in_a_row = 0
        """Groups that gave nothing to train since the last one that did; late ones and those the engine failed do not count."""

    @property
    def spent(self) -> bool:
        """Whether two passes' worth of groups in a row gave nothing to train.

        Two, since every pass has an order of its own: only then was each prompt asked at least once.
        """
        return self.untrained_in_a_row >= max(2 * self._prompts_per_epoch, self._config.step.groups)

    def choose(self, ordinal: int) -> Chosen:
        """Wait for the groups of one step, planned after `ordinal` publishes. Consumes nothing: a plan does."""
        self._shelf.look()
        chosen = Chosen(num_queued_samples=self._shelf.num_samples())
        taken: set[int] = set()
        self._began = self._told = time.monotonic()
        while chosen.places < self._config.step.groups and not chosen.exhausted and not chosen.spent:
            if self._is_over(taken, chosen):
                chosen.exhausted = True
                break
            scored = self._look(taken, chosen) or self._wait(taken, chosen)
            taken.add(scored.ticket)
            self._place(chosen, scored, ordinal)
        # While the step is trained nobody looks: generators are told now what they may do beside it.
        self._tell(taken, chosen.num_replaced, at_once=True)
        chosen.untrained_in_a_row, chosen.reasons = self.untrained_in_a_row, Counter(self._reasons)
        self._num_void += chosen.num_void
        return chosen

    def _wait(self, taken: set[int], chosen: Chosen) -> ScoredGroup:
        with self._clock.part("wait"):
            return wait_for(
                self._what(taken),
                lambda: self._look(taken, chosen),
                deadline_seconds=self._config.stop.stall_seconds,
                stop=self._stop,
            )

    def _look(self, taken: set[int], chosen: Chosen) -> ScoredGroup | None:
        self._drop_void(taken, chosen)
        self._tell(taken, chosen.num_replaced, at_once=False)
        self._say_waiting(chosen)
        return self._next(taken)

    def _drop_void(self, taken: set[int], chosen: Chosen) -> None:
        """Tickets whose prompts are given out again are dropped on their claim: nobody need write them."""
        for ticket, reason in self._shelf.void().items():
            if ticket not in taken:
                taken.add(ticket)
                chosen.drops.append(Drop(ticket=ticket, reason=reason))
                chosen.num_replaced += 1
                chosen.num_void += 1

    def _say_waiting(self, chosen: Chosen) -> None:
        """Every second, how far the step is filled: groups may come in plenty and none of them fill it."""
        now = time.monotonic()
        if now - self._told < BEAT_SECONDS:
            return
        self._told = now
        aside = f", {len(chosen.drops)} set aside" if chosen.drops else ""
        told = f"scored groups: {chosen.places} of {self._config.step.groups} places filled{aside}"
        self._beat(told, now - self._began)

    def _is_over(self, taken: set[int], chosen: Chosen) -> bool:
        asked = len(self._shelf.consumed) + len(taken) - self._num_void - chosen.num_void
        return self._num_prompts is not None and asked >= self._num_prompts

    def _what(self, taken: set[int]) -> str:
        ticket = self._lowest(taken)
        return f"scored group {ticket}" if self._config.lockstep else f"a scored group (lowest open ticket {ticket})"

    def _lowest(self, taken: set[int]) -> int:
        consumed = self._shelf.consumed
        ticket = consumed.floor
        while ticket in consumed or ticket in taken:
            ticket += 1
        return ticket

    def _next(self, taken: set[int]) -> ScoredGroup | None:
        lowest, waiting = self._lowest(taken), self._shelf.waiting
        if lowest in waiting or self._config.lockstep:
            return waiting.get(lowest) or self._shelf.look().get(lowest)
        return next((group for ticket, group in self._shelf.look().items() if ticket not in taken), None)

    def _place(self, chosen: Chosen, scored: ScoredGroup, ordinal: int) -> None:
        """Give the group a place in the step, or drop it with the reason."""
        reason = self._reason(scored, ordinal)
        if reason is None:
            chosen.groups.append(scored)
            self._count_trained(chosen, scored)
            return
        left_out_by = scored.left_out_by if reason is DropReason.LEFT_OUT else None
        chosen.drops.append(Drop(ticket=scored.ticket, reason=reason, left_out_by=left_out_by))
        chosen.dropped.append(scored)
        self._reasons[chosen.drops[-1].told] += 1
        if reason is DropReason.OVERSIZE:
            logger.warning(
                "ticket %d is dropped: its every sample is longer than step.micro_tokens = %d; raise it to train them",
                scored.ticket,
                self._config.step.micro_tokens,
            )
        if reason is DropReason.FILTERED:
            self._count_filtered(scored.ticket)
        late = reason in (DropReason.STALE, DropReason.VOID_VERSION)
        chosen.num_replaced += late or not fills_step(scored.marks, self._config.zero_variance)
        self.untrained_in_a_row += not late and reason is not DropReason.FAILED
        chosen.spent = self.spent

    def _count_trained(self, chosen: Chosen, scored: ScoredGroup) -> None:
        """A group of which no sample is left, since all its rollouts were cut or masked, teaches no more than a dropped one."""
        cut = scored.truncated if self._config.step.mask_truncated else [False] * len(scored.rewards)
        rollouts = zip(scored.num_sequences, scored.rewards, cut, strict=True)
        if any(number and not math.isnan(reward) and not is_cut for number, reward, is_cut in rollouts):
            self.untrained_in_a_row = 0
            self._reasons.clear()
            return
        self._reasons[WITHOUT_SAMPLES] += 1
        self.untrained_in_a_row += 1
        chosen.spent = self.spent

    def _count_filtered(self, ticket: int) -> None:
        """Raise `HookError` once no prompt of an epoch was asked (A-214)."""
        epoch = self._shelf.prompt_of(ticket) // self._prompts_per_epoch
        self._filtered[epoch] += 1
        if self._filtered[epoch] == self._prompts_per_epoch:
            raise HookError(
                f"{self._config.rollout_loop.path}: filter_prompt left out all {self._prompts_per_epoch} prompts of epoch {epoch}; "
                "a run asks one at least in every epoch. Mend the hook, then `agrpo resume` this run with --from-step and its last "
                "step: prompts that it left out are asked about again"
            )

    def _reason(self, scored: ScoredGroup, ordinal: int) -> DropReason | None:
        kept = frozenset({Mark.EQUAL_REWARDS}) if self._config.zero_variance == "keep" else frozenset()
        for mark, reason in _REASONS.items():
            if mark in scored.marks - kept:
                return reason
        if not self._shelf.version_counts(scored):
            return DropReason.VOID_VERSION
        if staleness(ordinal, scored.ordinal) > self._config.asynchronous.max_staleness:
            return DropReason.STALE
        return None
