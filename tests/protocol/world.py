"""What happens to the processes of a run: new attempts, wishes, deaths; and the archive and the recorder beside them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.generating import generate
from tests.protocol.history import done_weights, kept, lineage
from tests.protocol.learning import learn
from tests.protocol.model import Action, Model
from tests.protocol.state import Generator, Learner, State, Wish, put


def actions(model: Model, state: State) -> Iterator[Action]:
    """Everything that may happen next.

    Death needs no action: a process that never moves again is dead, one that moves later is a zombie.
    """
    for attempt in range(0 if model.bounds.zombies else max(0, len(state.learners) - 1), len(state.learners)):
        yield from learn(model, state, attempt)
    for number in range(len(state.generators)):
        yield from generate(model, state, number)
    yield from _starts(model, state)
    yield from _wishes(model, state)
    yield from _deaths(model, state)
    if model.bounds.archive:
        yield from _archives(state)
    if model.bounds.recorder:
        yield from _records(state)


def _starts(model: Model, state: State) -> Iterator[Action]:
    attempt = len(state.learners)
    if attempt == model.bounds.attempts:
        return
    machines = {learner.machine for learner in state.learners} or {0}
    newest = max(machines)
    for machine in (newest, 1) if model.bounds.diverge and attempt and newest == 0 else (newest,):
        other = " on another kind of machine" if machine != newest else ""
        learners = (*state.learners, Learner(machine=machine))
        yield f"attempt {attempt} begins{other}", state._replace(learners=learners)


def _wishes(model: Model, state: State) -> Iterator[Action]:
    """Somebody asks to go back to a step that is done."""
    number = len(state.wishes)
    members = lineage(state)
    if number == len(model.bounds.rewinds) or not members:
        return
    wish = Wish(model.bounds.rewinds[number], len(state.learners))
    if wish.step < len(done_weights(state, members, wish.step)):
        yield f"somebody asks to go back to step {wish.step}", state._replace(wishes=(*state.wishes, wish))


def _deaths(model: Model, state: State) -> Iterator[Action]:
    if state.deaths == model.bounds.deaths:
        return
    for number, generator in enumerate(state.generators):
        if generator.serving is not None:
            born = put(state.generators, number, Generator(generator.life + 1))
            yield (
                f"generator {number} dies and is started again",
                state._replace(generators=born, deaths=state.deaths + 1),
            )


def _archives(state: State) -> Iterator[Action]:
    """Slots below the floors of the two newest checkpoints of the lineage move into the archive."""
    members = lineage(state)
    found = {one.step: one for one in state.checkpoints if one.step <= kept(state.bases, members, one.attempt)}
    if len(found) < 2:
        return
    newest = [found[step] for step in sorted(found)[-2:]]
    floor = min(
        next(ticket for ticket in range(len(state.tickets) + 1) if ticket not in one.consumed) for one in newest
    )
    for ticket, claimed in enumerate(state.tickets[:floor]):
        if claimed.slot is not None and not claimed.archived:
            archived = put(state.tickets, ticket, claimed._replace(archived=True))
            yield f"ticket {ticket} is archived", state._replace(tickets=archived)


def _records(state: State) -> Iterator[Action]:
    if state.seen_bases != state.bases:
        yield "the recorder reads the bases", state._replace(seen_bases=state.bases)
    if state.seen_plans != state.plans:
        yield "the recorder reads the plans", state._replace(seen_plans=state.plans)
