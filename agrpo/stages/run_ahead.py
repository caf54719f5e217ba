"""Run-ahead: how many tokens may be queued or in flight, told to generators as one ticket (A-095 to A-100)."""

from __future__ import annotations

import time

from agrpo.config import RunConfig
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Hint
from agrpo.records.score import ScoredGroup
from agrpo.stages.shelf import Shelf
from agrpo.staleness import limit_ticket

LEAST_SECONDS = 0.05
AGAIN_SECONDS = 1.0


class RunAhead:
    """Keeps the learner's hint: the allowance of `max(max_staleness, 1)` steps of tokens, as a ticket.

    A step's tokens (T) are those of all groups it consumed, before packing. Before the first step, T is what a full step
    of groups of the length seen so far would take.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, shelf: Shelf, *, dropped: int, attempt: int) -> None:
        self._attempt = attempt
        self._folder = folder
        self._config = config
        self._shelf = shelf
        self._step_tokens: float | None = None
        self._dropped = dropped
        self._told: Hint | None = None
        self._told_at = 0.0
        self._written_at = 0.0

    def step_consumed(self, groups: list[ScoredGroup], dropped: int) -> None:
        """A plan consumed these groups, `dropped` of which took no place of the step."""
        self._step_tokens = float(sum(sum(group.num_forwarded_tokens) for group in groups)) or self._step_tokens
        self._dropped += dropped

    def tell(self, taken: set[int], dropped: int = 0, *, at_once: bool = False, finished: bool = False) -> None:
        """Write the hint, where it says something new, and again every second: an older learner's late word may lie over it.

        Not more often than generators look, unless it is said `at_once` or the run is finished.

        `taken`: groups chosen for a step that is not planned yet, of which `dropped` take no place in it.
        """
        now = time.monotonic()
        if now - self._told_at < LEAST_SECONDS and not (at_once or finished):
            return
        self._told_at = now
        limit = None if self._config.lockstep else self._limit(taken)
        hint = Hint(
            limit_ticket=limit, dropped=self._dropped + dropped, floor=self._shelf.consumed.floor, finished=finished
        )
        if hint != self._told or now - self._written_at >= AGAIN_SECONDS:
            self._told, self._written_at = hint, now
            lying = self._folder.hint()
            if lying is not None and (lying.attempt or 0) > self._attempt:
                return  # a newer learner has the word
            self._folder.write_hint(
                Hint(
                    limit_ticket=limit,
                    dropped=hint.dropped,
                    floor=hint.floor,
                    finished=finished,
                    attempt=self._attempt,
                    replaced_below_floor=self._replaced_below_floor(),
                    written_at=time.time(),
                )
            )

    def _replaced_below_floor(self) -> int | None:
        """In lockstep tickets are consumed in order; above the floor only void ones are, which take no place."""
        return self._dropped - len(self._shelf.consumed.above) if self._config.lockstep else None

    def _limit(self, taken: set[int]) -> int:
        consumed = self._shelf.consumed
        tokens = {ticket: sum(group.num_forwarded_tokens) for ticket, group in self._shelf.look().items()}
        mean = self._shelf.tokens_seen / self._shelf.num_seen if self._shelf.num_seen else None
        step_tokens = self._step_tokens or self._config.step.groups * (mean or 1.0)
        allowance = max(self._config.asynchronous.max_staleness, 1) * step_tokens
        return limit_ticket(consumed.above | taken, consumed.floor, tokens, mean, allowance)
