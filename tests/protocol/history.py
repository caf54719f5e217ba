"""What a run's history is, read from its records: the lineage, its steps and versions, and the prompt of a ticket."""

from __future__ import annotations

from functools import cache

from tests.protocol.state import FOREVER, VOID, Plan, Published, State, Version


@cache
def head(bases: tuple) -> int | None:
    """The highest base that is not void."""
    return next((a for a in range(len(bases) - 1, -1, -1) if bases[a] and bases[a] != VOID), None)


@cache
def chain(bases: tuple, newest: int | None) -> tuple[int, ...]:
    """The lineage that ends in `newest`, newest first."""
    found: list[int] = []
    while newest is not None:
        found.append(newest)
        newest = bases[newest].parent
    return tuple(found)


def lineage(state: State) -> tuple[int, ...]:
    return chain(state.bases, head(state.bases))


@cache
def owner(bases: tuple, members: tuple[int, ...], step: int) -> int | None:
    """Whose record of a step is the history's."""
    return next((member for member in members if bases[member].step < step), None)


def kept(bases: tuple, members: tuple[int, ...], attempt: int) -> int:
    """Last step of an attempt that the history keeps; -1 where it keeps none."""
    return _least(bases, members, attempt, "step")


def adopted(bases: tuple, members: tuple[int, ...], attempt: int) -> int:
    """Last step of an attempt whose samples stay valid."""
    return _least(bases, members, attempt, "through")


@cache
def _least(bases: tuple, members: tuple[int, ...], attempt: int, field: str) -> int:
    if attempt not in members:
        return -1
    later = members[: members.index(attempt)]
    return min((getattr(bases[member], field) for member in later), default=FOREVER)


def plans(state: State, members: tuple[int, ...], last: int) -> list[Plan]:
    """The history's plans of steps 1 to `last`, up to the first that is not there."""
    found: list[Plan] = []
    for step in range(1, min(last, len(state.plans[0]) - 1) + 1):
        attempt = owner(state.bases, members, step)
        if attempt is None or state.plans[attempt][step] is None:
            break
        found.append(state.plans[attempt][step])
    return found


def done_weights(state: State, members: tuple[int, ...], last: int) -> list[tuple]:
    """Weights after steps 0, 1, … of the history, as far as they are done."""
    found: list[tuple] = [()]
    for step in range(1, min(last, len(state.plans[0]) - 1) + 1):
        attempt = owner(state.bases, members, step)
        if attempt is None or state.dones[attempt][step] is None:
            break
        found.append(state.dones[attempt][step])
    return found


def newest_version(bases: tuple, published: frozenset[Published], members: tuple[int, ...]) -> Version | None:
    """The version of the highest number among those whose samples are valid."""
    valid = [one.version for one in published if one.version.step <= adopted(bases, members, one.version.attempt)]
    return max(valid, default=None)


def void(state: State, members: tuple[int, ...], ticket: int, *, reissue: bool = True) -> str | None:
    """Why a claimed ticket is never trained."""
    claimed = state.tickets[ticket]
    for attempt in members:
        base = state.bases[attempt]
        if base.first_ticket is None:
            continue
        if reissue and ticket in base.reissue:
            return "reissued"
        if ticket >= base.first_ticket and claimed.base < attempt:
            return "void_base"
    if claimed.slot is None:
        return None
    version = claimed.slot.version
    return "void_version" if version.step > adopted(state.bases, members, version.attempt) else None


def prompt_of(state: State, members: tuple[int, ...], ticket: int, *, skip: bool = True) -> int:
    """The number of the prompt that a ticket is about."""
    for attempt in members:
        base = state.bases[attempt]
        if base.first_ticket is not None and ticket >= base.first_ticket:
            index = given_out(state, attempt, ticket, skip=skip)
            return nth_prompt(base.prompts, base.next_prompt, index)
    return ticket


def given_out(state: State, attempt: int, end: int, *, skip: bool = True) -> int:
    """Prompts that tickets below `end` have had of a rewinding attempt."""
    tickets = range(state.bases[attempt].first_ticket, end)
    if not skip:
        return len(tickets)
    return sum(state.tickets[ticket] is None or state.tickets[ticket].base >= attempt for ticket in tickets)


def nth_prompt(prompts: tuple[int, ...], next_prompt: int, index: int) -> int:
    return prompts[index] if index < len(prompts) else next_prompt + index - len(prompts)
