"""Bases that went back: which tickets they gave up, and which prompts they ask again, made once more from what is written."""

from __future__ import annotations

from collections.abc import Mapping

from agrpo.audit.groups import TicketFacts
from agrpo.audit.look import Look
from agrpo.audit.steps import Books
from agrpo.queue.rewinds import BaseOf, Rewinds
from agrpo.records.progress import Base


def check_rewinds(look: Look, books: Books, found: Mapping[int, TicketFacts], base_of: BaseOf) -> None:
    """Every base of the history that went back. All claims and bases must have been read."""
    bases = books.ancestry.bases
    for member in books.ancestry.members:
        base = bases[member.attempt]
        if base.first_ticket is not None:
            before = {number: other for number, other in bases.items() if number < base.attempt}
            _check_prompts(look, base, base.first_ticket, Rewinds(before, base_of))
            if member.last is None or member.last >= base.base_step:  # else what it took over was left behind since
                _check_given_up(look, base, Rewinds(before, base_of), books, found)


def _check_prompts(look: Look, base: Base, first: int, before: Rewinds) -> None:
    key = _key(base)
    above = [ticket for ticket in base.reissue if ticket >= first]
    if above:
        look.find(key, f"it gives up tickets {above}; expected tickets below {first}, its first")
        return
    left, next_prompt = before.left(first)
    prompts = [*(before.prompt_of(ticket) for ticket in base.reissue), *left]
    if (prompts, next_prompt) != (base.prompts, base.next_prompt):
        look.find(
            key,
            f"expected prompts {prompts} to be asked first, then from {next_prompt} on; found {base.prompts} and "
            f"{base.next_prompt}",
        )


def _check_given_up(look: Look, base: Base, before: Rewinds, books: Books, found: Mapping[int, TicketFacts]) -> None:
    key, given_up = _key(base), set(base.reissue)
    for ticket in range(base.first_ticket or 0):
        consumed = books.log.consumed.get(ticket)
        done = consumed is not None and consumed.step <= base.base_step
        if ticket in given_up and (done or before.void(ticket) is not None):
            why = f"step {consumed.step} consumes it" if consumed and done else "it was void before"
            look.find(key, f"it gives up ticket {ticket}; {why}")
        elif ticket not in given_up and not done and before.void(ticket) is None:
            _check_kept(look, key, base, ticket, found.get(ticket))


def _check_kept(look: Look, key: str, base: Base, ticket: int, facts: TicketFacts | None) -> None:
    """A group that stays valid was sampled by weights of the history up to there."""
    if facts is not None and facts.unread:
        return
    if facts is None or facts.group is None:
        look.find(key, f"it does not give up ticket {ticket}, of which no group was written")
        return
    version, _, step, _ = facts.group.sampler
    if step is not None and step > base.base_step:
        look.find(
            key, f"it does not give up ticket {ticket}, which version {version} of step {step} sampled; expected it to"
        )


def _key(base: Base) -> str:
    return f"bases/{base.attempt:06d}.json"
