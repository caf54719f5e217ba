"""Replaying: recorded steps carried out once more, to the very weights they gave."""

from __future__ import annotations

import logging
from collections.abc import Callable

from agrpo.config import RunConfig
from agrpo.errors import ReplayMismatch
from agrpo.queue.lineage import Segment
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import scored_from_arrow
from agrpo.records.progress import Done, Plan
from agrpo.records.score import ScoredGroup
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import StepMaterial, Trainee, carry_out
from agrpo.stages.planning import read_groups
from agrpo.stages.standing import Standing
from agrpo.stages.succession import done_of, plan_of

logger = logging.getLogger(__name__)


def replay_to(
    step: int,
    *,
    folder: RunFolder,
    config: RunConfig,
    segments: list[Segment],
    trainee: Trainee,
    standing: Standing,
    on_step: Callable[[Done], None],
    on_row: Callable[[], None] = lambda: None,
) -> None:
    """Move trainee and standing on to a done step of the lineage. Writes nothing.

    `on_step` hears of each step, `on_row` is called after each micro-batch.

    Raises `ReplayMismatch` at the first step whose weights differ: the standing is then that of the step before, and the
    trainee's weights are nobody's.
    """
    clock = StepClock()
    for number in range(standing.step + 1, step + 1):
        plan, recorded = plan_of(folder, segments, number), done_of(folder, segments, number)
        done = carry_out(config, trainee, material_of(folder, plan, clock, on_row)).done
        if (done.digest, done.reference_digest) != (recorded.digest, recorded.reference_digest):
            raise ReplayMismatch(_difference(done, recorded, _other_ranks(plan, trainee)))
        standing.count(plan, done)
        logger.info("step %d replayed: digest %s", number, done.digest[:12])
        on_step(done)


def material_of(
    folder: RunFolder, plan: Plan, clock: StepClock, on_row: Callable[[], None] = lambda: None
) -> StepMaterial:
    """A written plan and what it speaks of."""
    consumed = [_scored(folder, ticket) for ticket in plan.scored]
    groups = read_groups(folder, plan.tickets)
    return StepMaterial(plan=plan, groups=groups, consumed=consumed, clock=clock, on_row=on_row)


def _scored(folder: RunFolder, ticket: int) -> ScoredGroup:
    return scored_from_arrow(folder.scored.demand(ticket), folder.scored.key(ticket))


def _other_ranks(plan: Plan, trainee: Trainee) -> str:
    """What may be why: the plan asks for more GPUs than are here."""
    size = trainee.group.size
    return "" if size == plan.ranks else f", by {size} of the {plan.ranks} processes that it is planned for"


def _difference(done: Done, recorded: Done, ranks: str) -> str:
    differing = [name for name, digest in recorded.digests.items() if done.digests.get(name) != digest]
    where = (
        f"in {len(differing)} of {len(recorded.digests)} tensors, first {differing[0] if differing else 'none by name'}"
    )
    if done.digest == recorded.digest:
        where = f"in the reference policy, now {done.reference_digest}, recorded {recorded.reference_digest}"
    return (
        f"step {done.step} replayed differently{ranks} {where}: loss {done.loss!r}, recorded {recorded.loss!r}; gradient norm "
        f"{done.grad_norm!r}, recorded {recorded.grad_norm!r}. The same machine, packages, threads and processes replay a run exactly; "
        'resume it there, or accept other weights from here on with resume.on_difference = "continue"'
    )
