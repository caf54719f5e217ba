"""The step log: plans and done records are pairs without a hole, their digests chain, and no ticket is consumed twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agrpo.audit.ancestry import Ancestry, Versions
from agrpo.audit.look import Look
from agrpo.audit.planned import check_outcome, check_plan
from agrpo.audit.plans import Chain, Totals
from agrpo.audit.terms import Terms
from agrpo.audit.tokens import check_tokens
from agrpo.database.documents import FinishedStep, add_done, add_plan
from agrpo.database.ledger import Entry
from agrpo.queue.run_folder import StepKey
from agrpo.records.progress import Done, Drop, DropReason, Plan
from agrpo.tensors import digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """Where a ticket was consumed, in the history."""

    step: int
    attempt: int
    reason: DropReason | None
    """None: trained."""
    left_out_by: str | None = None
    """The filter, where that is the reason."""
    staleness: int | None = None
    """None: dropped, or no sample was planned."""
    samples: tuple[tuple[int, int], ...] = ()
    """Rollout and sequence of every sample trained."""
    advantages: tuple[float, ...] = ()
    """By sample."""
    trained_tokens: tuple[int, ...] | None = None
    """By sample; None while the step is not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The step log's names. Done records were listed first, so that each has its plan."""

    done: set[StepKey]
    planned: set[StepKey]

    @classmethod
    def of(cls, look: Look) -> Listed:
        attempts = look.folder.attempts()
        done = {StepKey(attempt, step) for attempt in attempts for step in look.folder.done_steps(attempt)}
        planned = {StepKey(attempt, step) for attempt in attempts for step in look.folder.planned_steps(attempt)}
        return cls(done=done, planned=planned)


@dataclass(kw_only=True)
class StepLog:
    """What the step log says."""

    consumed: dict[int, Consumed] = field(default_factory=dict)
    """By ticket."""
    digests: dict[StepKey, str] = field(default_factory=dict)
    """Of every done step, on the history or not."""
    published: dict[int, StepKey] = field(default_factory=dict)
    """The done step of the history whose weights a version is to be."""
    publishes: dict[StepKey, tuple[int | None, int | None]] = field(default_factory=dict)
    """Version and ordinal of every plan, on the history or not."""
    plans: dict[int, PlanFacts] = field(default_factory=dict)
    """Of the history, by step."""
    totals: dict[int, Totals] = field(default_factory=dict)
    """Of the history, by step; 0: before the first."""
    num_samples: int = 0
    last: int = 0
    """Last step of the history that is done."""
    begins_from: str = ""
    """Digest of the weights that the plan of step 1 begins from; empty where it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What a plan counts of its groups."""

    step: int
    attempt: int
    num_replaced: int
    num_oversize: int
    num_truncated: int
    consumed: list[int]
    """Tickets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What everything else is held against."""

    ancestry: Ancestry
    log: StepLog
    terms: Terms


def read_steps(look: Look, ancestry: Ancestry, terms: Terms, versions: Versions) -> Books:
    """Every plan and done record, those of the history in order."""
    log = _Steps(look, ancestry, Chain(look, terms, ancestry, versions), Listed.of(look), terms).read()
    return Books(ancestry=ancestry, log=log, terms=terms)


class _Steps:
    """One pass over the step log."""

    def __init__(self, look: Look, ancestry: Ancestry, chain: Chain, listed: Listed, terms: Terms) -> None:
        self.look = look
        self.ancestry = ancestry
        self.terms = terms
        self.chain = chain
        self.listed = listed
        self.log = StepLog()
        self.before: Done | None = None
        """The done record of the step before, on the history."""
        self.num_updates = 0

    def read(self) -> StepLog:
        history = sorted(
            (key for key in self.listed.planned | self.listed.done if self.ancestry.is_live(key)), key=_step
        )
        others = sorted((self.listed.planned | self.listed.done) - set(history), key=_step)
        total = len(history) + len(others)
        for number, key in enumerate([*others, *history]):
            self._read(key, live=number >= len(others))
            self.look.tell("steps", number + 1, total)
        self.chain.end()
        self.log.totals = self.chain.totals
        self._no_holes(history)
        self._say(len(history), len(others))
        return self.log

    def _read(self, key: StepKey, *, live: bool) -> None:
        look, planned, finished = (
            self.look,
            Entry(f"plans/{key.attempt}", key.step),
            Entry(f"steps/{key.attempt}", key.step),
        )
        plan = look.read(f"{_name(key)}.plan.json", lambda: look.folder.plan(key), planned)
        done = look.read(f"{_name(key)}.done.json", lambda: look.folder.done(key), finished)
        check_tokens(look, f"{_name(key)}.tokens.arrow", look.folder.tokens(key), done)
        if plan is not None:
            self._own_name(key, plan, "plan")
            self.look.expect_record(planned, add_plan, plan)
            self.chain.see(plan)
            self.log.publishes[key] = plan.publish, plan.ordinal
        if done is not None:
            self._own_name(key, done, "done")
            self.look.expect_record(finished, add_done, FinishedStep(done=done, tokens=None))
            self.log.digests[key] = done.digest
            if done.digests and digest_of(done.digests) != done.digest:
                self.look.find(
                    f"{_name(key)}.done.json",
                    f"its tensors' digests make {digest_of(done.digests)}, it says {done.digest}; expected the same",
                )
        self._pair(key, plan)
        if plan is not None and done is not None:
            check_outcome(self.look, plan, done)
        if live:
            self._follow(key, plan, done)

    def _own_name(self, key: StepKey, record: Plan | Done, kind: str) -> None:
        if (record.attempt, record.step) != (key.attempt, key.step):
            self.look.find(
                f"{_name(key)}.{kind}.json",
                f"expected step {key.step} of attempt {key.attempt}, found step {record.step} of attempt {record.attempt}",
            )

    def _pair(self, key: StepKey, plan: Plan | None) -> None:
        """Every done record has its plan, and only the last plans of an attempt are not done."""
        if key in self.listed.done and key not in self.listed.planned:
            self.look.find(f"step {key.step} of attempt {key.attempt}", "it is done; expected its plan, found none")
        later = StepKey(key.attempt, key.step + 1)
        if key in self.listed.planned and key not in self.listed.done and later in self.listed.done:
            self.look.find(
                f"step {key.step} of attempt {key.attempt}",
                f"it is planned, and step {later.step} is done; expected its done record, found none",
            )

    def _follow(self, key: StepKey, plan: Plan | None, done: Done | None) -> None:
        """Take a step of the history into the books."""
        if plan is not None:
            check_plan(self.look, plan, self.terms)
            self._chain(plan)
            self.chain.follow(plan, done)
            self._consume(plan, done)
            if key.step == 1:
                self.log.begins_from = plan.parent_digest
        if key in self.listed.done:
            self.log.last = max(self.log.last, key.step)
        if done is not None:
            self._count_tokens(done)
            if done.publish is not None:
                self.log.published[done.publish] = key
        self.before = done

    def _chain(self, plan: Plan) -> None:
        before = self.before
        about = f"step {plan.step} (attempt {plan.attempt})"
        if before is not None and before.step == plan.step - 1 and plan.parent_digest:
            self._continue(about, plan, before)
        updates = self.num_updates + (not plan.empty)
        if plan.num_updates not in (0, updates):
            self.look.find(about, f"expected {updates} optimizer updates up to it, its plan says {plan.num_updates}")
        self.num_updates = plan.num_updates or updates

    def _continue(self, about: str, plan: Plan, before: Done) -> None:
        """A step begins with what the one before left, but where its plan was carried out again by other weights."""
        begun = {"weights": plan.parent_digest, "an entropy coefficient": plan.entropy_coefficient}
        left = {"weights": before.digest, "an entropy coefficient": before.entropy_coefficient}
        for what, value in begun.items():
            if value != left[what]:
                self.look.find(
                    about,
                    f"its plan begins from {what} {value}, step {before.step} ended in {left[what]}; expected the same",
                )

    def _consume(self, plan: Plan, done: Done | None) -> None:
        samples: dict[int, list[int]] = {ticket: [] for ticket in plan.tickets}
        for number, sample in enumerate(plan.samples):
            samples.setdefault(sample.ticket, []).append(number)
        for ticket in plan.tickets:
            self._take(ticket, _trained(plan, done, samples[ticket]))
        for drop in plan.drops:
            self._take(drop.ticket, _dropped(plan, drop))
        self.log.num_samples += len(plan.samples)
        self.log.plans[plan.step] = PlanFacts(
            step=plan.step,
            attempt=plan.attempt,
            num_replaced=plan.num_replaced,
            num_oversize=plan.num_oversize,
            num_truncated=plan.num_truncated,
            consumed=plan.consumed,
        )

    def _take(self, ticket: int, consumed: Consumed) -> None:
        before = self.log.consumed.get(ticket)
        if before is not None:
            self.look.find(
                f"ticket {ticket}",
                f"consumed twice, by step {before.step} (attempt {before.attempt}) and step {consumed.step} (attempt "
                f"{consumed.attempt}); expected once",
            )
        self.log.consumed[ticket] = consumed

    def _count_tokens(self, done: Done) -> None:
        before = self.before
        expected = sum(row.num_tokens for row in done.rows) + (before.num_tokens if before else 0)
        if (before is not None or done.step == 1) and done.rows and expected != done.num_tokens:
            self.look.find(
                f"step {done.step} (attempt {done.attempt})",
                f"expected {expected} tokens forwarded since the start of the run, its done record says {done.num_tokens}",
            )

    def _no_holes(self, history: list[StepKey]) -> None:
        found = {key.step for key in history if key in self.listed.done}
        for step in sorted(set(range(1, self.log.last + 1)) - found):
            self.look.find(f"step {step}", f"steps 1 to {self.log.last} are done; expected its done record, found none")
        twice = [step for step, count in Counter(key.step for key in history).items() if count > 1]
        assert not twice, f"segments of a lineage do not overlap, yet steps {twice} are in two"

    def _say(self, num_history: int, num_others: int) -> None:
        half_done = num_history - self.log.last
        told = [f"1 to {self.log.last} done"] if self.log.last else []
        told += [f"{half_done} planned and not done"] if half_done > 0 else []
        told += [f"{num_others} left behind by an attempt"] if num_others else []
        self.look.line("steps", num_history + num_others, ", ".join(told))
        self.look.line("samples", self.log.num_samples, "planned in steps of the history")


def _trained(plan: Plan, done: Done | None, numbers: list[int]) -> Consumed:
    samples = [plan.samples[number] for number in numbers]
    whole = done is not None and len(done.samples) == len(plan.samples)
    return Consumed(
        step=plan.step,
        attempt=plan.attempt,
        reason=None,
        staleness=samples[0].staleness if samples else None,
        samples=tuple((sample.rollout_index, sample.sequence_index) for sample in samples),
        advantages=tuple(sample.advantage for sample in samples),
        trained_tokens=tuple(done.samples[number].num_trained_tokens for number in numbers) if done and whole else None,
    )


def _dropped(plan: Plan, drop: Drop) -> Consumed:
    return Consumed(step=plan.step, attempt=plan.attempt, reason=drop.reason, left_out_by=drop.left_out_by)


def _step(key: StepKey) -> tuple[int, int]:
    return key.step, key.attempt


def _name(key: StepKey) -> str:
    return f"steps/{key.attempt:06d}/{key.step:08d}"
