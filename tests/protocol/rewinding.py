"""Going back: the base of an attempt that takes the run up at an older step, with its prompts given out again."""

from __future__ import annotations

from tests.protocol.history import chain, given_out, kept, nth_prompt, prompt_of, void
from tests.protocol.model import Model
from tests.protocol.state import Base, Learner, State


def rewinding_base(model: Model, state: State, learner: Learner) -> Base:
    """Tickets of the future left behind are void; their prompts are given out first, under new tickets."""
    members = chain(state.bases, learner.parent)
    end = 1 + max((ticket for ticket, claimed in enumerate(state.tickets) if claimed), default=-1)
    again = tuple(ticket for ticket in range(end) if _is_given_up(state, members, learner, ticket))
    prompts = (prompt_of(state, members, ticket, skip="skip" in model.rules) for ticket in again)
    left, following = _not_yet_given(state, members, end)
    if "left_over" not in model.rules:
        left = ()
    return Base(
        parent=learner.parent,
        step=learner.step,
        through=learner.step,
        rewind=learner.wish,
        first_ticket=end,
        reissue=again,
        prompts=(*prompts, *left),
        next_prompt=following,
    )


def _is_given_up(state: State, members: tuple[int, ...], learner: Learner, ticket: int) -> bool:
    """Whether a ticket is neither consumed by then nor eligible: known by then, written, sampled by weights that stay."""
    if ticket in learner.consumed or void(state, members, ticket) in ("reissued", "void_base"):
        return False
    slot = state.tickets[ticket].slot
    if slot is None or ticket >= learner.known:
        return True
    return slot.version.step > min(learner.step, kept(state.bases, members, slot.version.attempt))


def _not_yet_given(state: State, members: tuple[int, ...], end: int) -> tuple[tuple[int, ...], int]:
    """Prompts of an older rewind that no ticket has had, and the first prompt that none ever had."""
    for attempt in members:
        base = state.bases[attempt]
        if base.first_ticket is not None:
            index = given_out(state, attempt, end)
            following = nth_prompt(base.prompts, base.next_prompt, max(index, len(base.prompts)))
            return base.prompts[index:], following
    return (), end
