"""One plan against itself and against its done record: what was planned is what was done, sample by sample."""

from __future__ import annotations

from collections import Counter

from agrpo.audit.look import Look
from agrpo.audit.terms import Terms
from agrpo.records.outcome import SampleOutcome
from agrpo.records.progress import Done, Plan, PlannedSample

Sample = tuple[int, int, int, float, int]
"""Ticket, rollout, sequence, advantage, staleness."""


def check_plan(look: Look, plan: Plan, terms: Terms) -> None:
    """Samples are of the plan's groups and each is in one row; nothing is too late; the ordinal is the step's."""
    about = f"step {plan.step} (attempt {plan.attempt})"
    counted = Counter((sample.ticket, sample.rollout_index, sample.sequence_index) for sample in plan.samples)
    for (ticket, rollout, sequence), count in counted.items():
        if count > 1:
            look.find(
                about,
                f"ticket {ticket}, rollout {rollout}, sequence {sequence} is planned {count} times; expected once",
            )
    foreign = sorted({sample.ticket for sample in plan.samples} - set(plan.tickets))
    if foreign:
        look.find(about, f"samples of tickets {foreign} are planned; expected only those of its tickets {plan.tickets}")
    placed = sorted(number for row in plan.rows for number in row)
    if placed != list(range(len(plan.samples))):
        look.find(about, f"expected each of its {len(plan.samples)} samples in one row, its rows hold {placed}")
    if len(plan.rows) % plan.ranks:
        look.find(about, f"expected as many rows for each of its {plan.ranks} ranks, it has {len(plan.rows)}")
    for sample in plan.samples:
        if not 0 <= sample.staleness <= terms.max_staleness:
            look.find(
                about,
                f"ticket {sample.ticket} is trained at staleness {sample.staleness}; expected 0 to {terms.max_staleness}",
            )
    expected = terms.ordinal_before(plan.step + 1)
    if plan.ordinal not in (None, expected):
        look.find(about, f"expected {expected} publishes up to it, its plan says {plan.ordinal}")


def check_outcome(look: Look, plan: Plan, done: Done) -> None:
    """The done record tells of the plan's samples, rows and publish, and of no others."""
    about = f"step {plan.step} (attempt {plan.attempt})"
    planned = [_sample(sample) for sample in plan.samples] if not plan.empty else []
    trained = [_sample(sample) for sample in done.samples]
    for number, (expected, found) in enumerate(zip(planned, trained, strict=False)):
        if expected != found:
            look.find(
                about,
                f"sample {number} was planned as {_told(expected)}, and done as {_told(found)}; expected the same",
            )
    if len(planned) != len(trained):
        look.find(about, f"{len(planned)} samples were planned, {len(trained)} done; expected the same")
    rows, forwarded = [len(row) for row in plan.rows], [row.num_samples for row in done.rows]
    if done.rows and rows != forwarded:
        look.find(about, f"its plan has rows of {rows} samples, {forwarded} were forwarded; expected the same")
    tokens = sum(sample.num_trained_tokens for sample in done.samples)
    if tokens != plan.num_trained_tokens:
        look.find(about, f"{plan.num_trained_tokens} trained tokens were planned, {tokens} done; expected the same")
    if (plan.publish, plan.empty) != (done.publish, done.empty):
        look.find(
            about,
            f"planned to publish {plan.publish} and {'be empty' if plan.empty else 'train'}, its done record says publish "
            f"{done.publish}, {'empty' if done.empty else 'trained'}; expected the same",
        )


def _sample(sample: PlannedSample | SampleOutcome) -> Sample:
    return sample.ticket, sample.rollout_index, sample.sequence_index, sample.advantage, sample.staleness


def _told(sample: Sample) -> str:
    ticket, rollout, sequence, advantage, staleness = sample
    return f"ticket {ticket}, rollout {rollout}, sequence {sequence}, advantage {advantage!r}, staleness {staleness}"
