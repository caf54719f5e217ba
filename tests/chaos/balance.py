"""What must hold of a run at any moment, and what two runs of one seed must share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from agrpo.queue.lineage import attempt_of, lineage
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done, Plan


def history(folder: RunFolder) -> list[tuple[Plan, Done]]:
    """Plan and done record of every step of the lineage. Asserts that none is missing and nothing is consumed twice."""
    segments = lineage(folder.bases())
    newest = segments[-1] if segments else None
    last = max(folder.done_steps(newest.attempt), default=newest.first - 1) if newest else 0
    found: list[tuple[Plan, Done]] = []
    for step in range(1, last + 1):
        attempt = attempt_of(segments, step)
        assert attempt is not None, f"step {step} of {last} belongs to nobody"
        plan, done = folder.plan(StepKey(attempt, step)), folder.done(StepKey(attempt, step))
        assert plan is not None, f"step {step} of {last} has no plan under attempt {attempt}"
        assert done is not None, f"step {step} of {last} is not done under attempt {attempt}"
        found.append((plan, done))
    return found


def balance(folder: RunFolder) -> list[tuple[Plan, Done]]:
    """The history, once each ticket is consumed at most once, has its slots, and each step goes on from the one before."""
    steps = history(folder)
    consumed = [ticket for plan, _ in steps for ticket in plan.consumed]
    assert len(consumed) == len({*consumed}), "a ticket is consumed twice"
    for ticket in consumed:
        assert folder.groups.read(ticket) is not None, f"ticket {ticket} is consumed and its group is gone"
        assert folder.scored.read(ticket) is not None, f"ticket {ticket} is consumed and its scores are gone"
    for (_, before), (plan, _) in pairwise(steps):
        assert plan.parent_digest in ("", before.digest), f"step {plan.step} goes on from other weights than were left"
    return steps


def told(folder: RunFolder) -> list[tuple[object, ...]]:
    """Of every step all that a run of the same seed must share: what it trained and dropped, how, and the weights after."""
    return [
        (
            plan.step,
            plan.tickets,
            [(drop.ticket, drop.reason) for drop in plan.drops],
            [(s.ticket, s.rollout_index, s.sequence_index, s.advantage, s.staleness) for s in plan.samples],
            done.digests,
        )
        for plan, done in balance(folder)
    ]


def last_tensors(folder: RunFolder) -> dict[str, bytes]:
    """Weights and optimizer state of the last checkpoint, as bytes by file."""
    name = folder.filesystem.list("checkpoints")[-1]
    place = folder.filesystem.local_folder(f"checkpoints/{name}")
    assert place is not None
    return {file.name: file.read_bytes() for file in sorted(Path(place).glob("*.safetensors"))}


def events_of_kind(folder: RunFolder, kind: str) -> int:
    """How many events of a kind all stages and supervisors of the run have written."""
    return sum(
        event.kind == kind
        for stream in folder.event_streams()
        for number in folder.event_numbers(stream)
        if (event := folder.event(stream, number)) is not None
    )
