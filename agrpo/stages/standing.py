"""Where a learner stands: everything it counts beside the weights, after some step of the history."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from agrpo.records.progress import CheckpointState, Done, Plan
from agrpo.stages.shelf import ConsumedTickets


@dataclass(kw_only=True)
class Standing:
    """After `step`. A checkpoint holds it, and every done plan moves it on."""

    step: int = 0
    version: int = 0
    """Newest version of the history."""
    next_version: int = 1
    """Number that the next publish takes."""
    ordinal: int = 0
    """Publishes of the history: what staleness counts."""
    digest: str = ""
    """Of the weights."""
    consumed: ConsumedTickets = field(default_factory=ConsumedTickets)
    num_replaced: int = 0
    """Consumed groups that took no place of a step."""
    num_void: int = 0
    """Consumed tickets whose prompts were given out again."""
    num_updates: int = 0
    untrained_in_a_row: int = 0
    entropy_coefficient: float | None = None
    """Of the bonus for entropy, as the last step left it. None: there is no bonus, or no step was done."""

    @classmethod
    def at_checkpoint(cls, state: CheckpointState, plan: Plan | None) -> Standing:
        """`plan`: of the checkpoint's step; None at step 0."""
        standing = cls(
            step=state.step,
            version=state.version,
            next_version=state.version + 1,
            ordinal=state.version if state.ordinal is None else state.ordinal,
            digest=state.digest,
            consumed=ConsumedTickets(state.floor, set(state.consumed)),
            num_replaced=state.num_replaced,
            num_void=state.num_void,
            entropy_coefficient=state.entropy_coefficient,
        )
        if plan is not None:
            standing._recall(plan)
        return standing

    def count(self, plan: Plan, done: Done) -> None:
        """The plan is done."""
        for ticket in plan.consumed:
            self.consumed.add(ticket)
        self.num_replaced += plan.num_replaced
        self.num_void += plan.num_void
        self._recall(plan)
        self.step, self.digest, self.entropy_coefficient = plan.step, done.digest, done.entropy_coefficient
        if plan.publish is not None:
            self.version, self.next_version = plan.publish, plan.publish + 1
        self.ordinal = self._ordinal_after(plan)

    def state(self, attempt: int, num_tokens: int, num_prompts: int, next_ticket: int) -> CheckpointState:
        return CheckpointState(
            attempt=attempt,
            step=self.step,
            digest=self.digest,
            floor=self.consumed.floor,
            consumed=sorted(self.consumed.above),
            num_replaced=self.num_replaced,
            num_void=self.num_void,
            num_tokens=num_tokens,
            num_prompts=num_prompts,
            version=self.version,
            entropy_coefficient=self.entropy_coefficient,
            ordinal=self.ordinal,
            next_ticket=next_ticket,
            written_at=time.time(),
        )

    def _recall(self, plan: Plan) -> None:
        """Take over what a done plan says of the history up to it."""
        self.num_updates, self.untrained_in_a_row = plan.num_updates, plan.untrained_in_a_row

    def _ordinal_after(self, plan: Plan) -> int:
        if plan.ordinal is not None:
            return plan.ordinal
        return self.ordinal + (plan.publish is not None)
