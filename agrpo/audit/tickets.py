"""The ledger of tickets: each is trained, dropped for a reason, void, pending or in flight, and never two of these."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from agrpo.audit.advantages import check_advantages
from agrpo.audit.ancestry import Versions
from agrpo.audit.archives import Written
from agrpo.audit.consumption import Case, check_consumed, num_missing, num_truncated, takes_no_place
from agrpo.audit.going_back import check_rewinds
from agrpo.audit.groups import TicketFacts
from agrpo.audit.look import Look
from agrpo.audit.prompts import check_prompts
from agrpo.audit.scores import sampled_by
from agrpo.audit.steps import Books, Consumed, PlanFacts
from agrpo.database.ledger import Entry
from agrpo.queue.rewinds import Rewinds
from agrpo.records.progress import VOID, DropReason


class Fate(StrEnum):
    """What became of a ticket so far."""

    TRAINED = "trained"
    DROPPED = "dropped"
    VOID = "void"
    """Its prompt is given out again under another ticket, and no plan has dropped it yet."""
    SCORED = "scored"
    GENERATED = "generated"
    IN_FLIGHT = "in flight"


def check_tickets(
    look: Look, books: Books, written: Written, found: dict[int, TicketFacts], versions: Versions
) -> Counter[Fate]:
    """Every ticket that was ever claimed, and no other; how many have which fate."""
    log = books.log

    def base_of(ticket: int) -> int | None:
        return found[ticket].claim if ticket in found else None

    rewinds = Rewinds(books.ancestry.bases, base_of)
    void = rewinds.void_tickets(found)
    fates: Counter[Fate] = Counter()
    for ticket, facts in sorted(found.items()):
        consumed = log.consumed.get(ticket)
        fates[_fate(facts, consumed, void.get(ticket))] += 1
        _check_claim(look, facts, written, consumed)
        _check_sampler(look, facts, versions)
        if consumed is not None:
            check_consumed(look, _case(facts, consumed, void.get(ticket), rewinds), books.terms)
    for plan in log.plans.values():
        _check_counts(look, plan, books, found)
    if not any(entry.stream == "claims" for entry in look.unread):
        check_rewinds(look, books, found, base_of)
        check_prompts(look, books.terms, found, rewinds, void)
    for ticket in sorted(set(range(max(found, default=-1) + 1)) - found.keys()):
        if ticket not in written.claimed:
            look.find(f"ticket {ticket}", f"expected its claim, since ticket {max(found)} exists; found nothing of it")
    reasons = Counter(one.reason.value for one in log.consumed.values() if one.reason is not None)
    why = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    told = [
        f"{fate} {fates[fate]:,}" + (f" ({why})" if fate is Fate.DROPPED and why else "")
        for fate in Fate
        if fates[fate]
    ]
    look.line("tickets", len(found), ", ".join(told))
    return fates


def _fate(facts: TicketFacts, consumed: Consumed | None, void: DropReason | None) -> Fate:
    if consumed is not None:
        return Fate.TRAINED if consumed.reason is None else Fate.DROPPED
    if void is not None:
        return Fate.VOID
    if facts.scores is not None:
        return Fate.SCORED
    return Fate.IN_FLIGHT if facts.group is None else Fate.GENERATED


def _check_claim(look: Look, facts: TicketFacts, written: Written, consumed: Consumed | None) -> None:
    """What a ticket has, it has in order: claimed, generated, scored."""
    ticket = facts.ticket
    if ticket not in written.claimed:
        has = f"step {consumed.step} consumes it" if consumed else "it is generated" if facts.group else "it is scored"
        look.find(f"ticket {ticket}", f"{has}; expected a claim, found none")
    if ticket in written.scored and ticket not in written.generated and facts.group is None:
        look.find(f"ticket {ticket}", f"it is scored; expected {look.folder.groups.key(ticket)}, found none")


def _case(facts: TicketFacts, consumed: Consumed, void: DropReason | None, rewinds: Rewinds) -> Case:
    _, attempt, step, _ = facts.scores.sampler if facts.scores else (0, 0, None, None)
    if Entry("claims", facts.ticket) in facts.unread and consumed.reason in VOID:
        void = consumed.reason
    return Case(facts=facts, consumed=consumed, void=void, version_counts=rewinds.version_counts(attempt, step))


def _check_sampler(look: Look, facts: TicketFacts, versions: Versions) -> None:
    """The version that a group says it was sampled by is the one that was published."""
    if facts.group is None or facts.group.sampler[2] is None or look.cannot_read("versions", facts.group.sampler[0]):
        return
    version, attempt, step, ordinal = facts.group.sampler
    ready = next((one for one in versions.get(version, []) if one.attempt == attempt), None)
    told = f"it was sampled by {sampled_by(facts.group.sampler)}"
    if ready is None:
        look.find(f"ticket {facts.ticket}", f"{told}; expected the record of that version, found none")
    elif (ready.step, ready.ordinal_or_version) != (step, ready.ordinal_or_version if ordinal is None else ordinal):
        look.find(
            f"ticket {facts.ticket}",
            f"{told}; that version is of step {ready.step}, ordinal {ready.ordinal_or_version}",
        )


def _check_counts(look: Look, plan: PlanFacts, books: Books, found: dict[int, TicketFacts]) -> None:
    """What a plan counts of its groups, where all their scores can be read."""
    about, log = f"step {plan.step} (attempt {plan.attempt})", books.log
    consumed = [(found[ticket], log.consumed[ticket]) for ticket in plan.consumed if ticket in found]
    check_advantages(look, plan, consumed, books.terms)
    replaced = [takes_no_place(one, facts, books.terms) for facts, one in consumed if one.reason is not None]
    if None not in replaced and sum(map(bool, replaced)) != plan.num_replaced:
        look.find(
            about, f"{sum(map(bool, replaced))} of its dropped groups took no place; its plan says {plan.num_replaced}"
        )
    places = len(plan.consumed) - plan.num_replaced
    if places > books.terms.step.groups:
        look.find(about, f"expected {books.terms.step.groups} places, its groups take {places}")
    trained = [(one, facts.scores) for facts, one in consumed if one.reason is None]
    readable = [(one, scores) for one, scores in trained if scores is not None]
    missing = sum(num_missing(one, scores, books.terms) for one, scores in readable)
    truncated = sum(num_truncated(scores, books.terms) for _, scores in readable)
    if len(readable) < len(trained):
        return
    if missing != plan.num_oversize:
        look.find(
            about,
            f"{missing} samples of its groups are not planned; expected those that are too long, of which it says there "
            f"are {plan.num_oversize}",
        )
    if truncated != plan.num_truncated:
        look.find(about, f"{truncated} samples of its groups were cut and are left out; it says {plan.num_truncated}")
