"""A generator: looks at the lineage, serves its newest version, claims the lowest free ticket when it may, writes it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.history import chain, lineage, newest_version, plans, prompt_of, void
from tests.protocol.model import Action, Model
from tests.protocol.state import FOREVER, Generator, Sample, State, Ticket, Version, Work, put


def generate(model: Model, state: State, number: int) -> Iterator[Action]:
    """What a generator, and what died of it, may do next."""
    generator = state.generators[number]
    own = [(ticket, work) for ticket, work in _works(state) if work.generator == number]
    busy = any(work.life == generator.life for _, work in own)
    if not (busy and model.bounds.lockstep):
        yield from _look(model, state, number, generator)
    if generator.serving is not None:
        yield from _begin(model, state, number, generator, len([1 for _, work in own if work.life == generator.life]))
    for ticket, work in own:
        yield _write(model, state, ticket, work)


def _works(state: State) -> Iterator[tuple[int, Work]]:
    for ticket, claimed in enumerate(state.tickets):
        if claimed is not None:
            yield from ((ticket, work) for work in claimed.works)


def _look(model: Model, state: State, number: int, generator: Generator) -> Iterator[Action]:
    """Read bases and versions anew; or find what the attempt that is served has published since, without the bases."""
    members = lineage(state)
    newest = newest_version(state.bases, state.published, members)
    if newest is None:
        return
    serving = generator.serving
    if serving is not None and "back" not in model.rules and newest.number < serving.number:
        return
    seen = Generator(generator.life, members[0], newest)
    if serving == newest and "look" not in model.rules:
        seen = generator
    if seen != generator:
        said = f"serves version {newest.number} under base {members[0]}"
        yield f"generator {number} {said}", _with(state, number, seen)
    if serving is None or generator.view == members[0] or generator.view != serving.attempt:
        return
    for published in state.published:
        version = published.version
        if version.attempt == serving.attempt and version.number == serving.number + 1:
            said = f"serves version {version.number}, the bases not looked at"
            yield f"generator {number} {said}", _with(state, number, generator._replace(serving=version))


def _begin(model: Model, state: State, number: int, generator: Generator, in_work: int) -> Iterator[Action]:
    """Take over what an earlier life had in work, then claim the lowest free ticket."""
    serving, view = generator.serving, generator.view
    assert serving is not None and view is not None
    members = chain(state.bases, view)
    skip = "skip" in model.rules
    for ticket, claimed in enumerate(state.tickets):
        if claimed is None or claimed.slot is not None:
            continue
        lives = [work.life for work in claimed.works if work.generator == number]
        if lives and generator.life not in lives:
            work = Work(number, generator.life, Sample(serving, prompt_of(state, members, ticket, skip=skip)))
            taken = claimed._replace(works=tuple(sorted((*claimed.works, work))))
            yield f"generator {number} takes ticket {ticket} over", _with_ticket(state, ticket, taken)
    free = next((ticket for ticket, claimed in enumerate(state.tickets) if claimed is None), None)
    if free is None or in_work >= model.bounds.claims or not _may_begin(model, state, members, serving, free):
        return
    work = Work(number, generator.life, Sample(serving, prompt_of(state, members, free, skip=skip)))
    said = f"claims ticket {free} under base {view}, version {serving.number}: prompt {work.sample.prompt}"
    yield f"generator {number} {said}", _with_ticket(state, free, Ticket(view, (work,)))


def _may_begin(model: Model, state: State, members: tuple[int, ...], serving: Version, ticket: int) -> bool:
    bounds = model.bounds
    if bounds.hinted and not bounds.lockstep and ticket >= state.hint.limit:
        return False
    if bounds.lockstep:
        gone = sum(_takes_no_place(model, state, members, earlier) for earlier in range(ticket))
    else:
        gone = state.hint.dropped if bounds.hinted else len(_dropped(model, state, members))
    ahead = 0 if bounds.lockstep else bounds.staleness
    return (ticket - gone) // (bounds.groups * bounds.sync) <= serving.ordinal + ahead


def _takes_no_place(model: Model, state: State, members: tuple[int, ...], ticket: int) -> bool:
    """By scores and claims alone."""
    slot = state.tickets[ticket].slot
    flat = slot is not None and slot.prompt in model.bounds.flat
    return flat or void(state, members, ticket) in ("reissued", "void_base")


def _dropped(model: Model, state: State, members: tuple[int, ...]) -> frozenset[int]:
    """By plans, and by the newest learner's fresh word."""
    planned = {ticket for plan in plans(state, members, FOREVER) for ticket in plan.dropped}
    return frozenset(planned | state.learners[members[0]].taken)


def _write(model: Model, state: State, ticket: int, work: Work) -> Action:
    written = state.tickets[ticket]._replace(slot=work.sample, works=())
    by = f"generator {work.generator}" + ("" if state.generators[work.generator].life == work.life else ", dead,")
    return f"{by} writes ticket {ticket}", _with_ticket(state, ticket, written)


def _with(state: State, number: int, generator: Generator) -> State:
    return state._replace(generators=put(state.generators, number, generator))


def _with_ticket(state: State, ticket: int, claimed: Ticket) -> State:
    return state._replace(tickets=put(state.tickets, ticket, claimed))
