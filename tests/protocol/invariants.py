"""What holds in every state."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.history import (
    chain,
    done_weights,
    given_out,
    head,
    kept,
    lineage,
    newest_version,
    nth_prompt,
    owner,
    plans,
    prompt_of,
    void,
)
from tests.protocol.model import Action, Model
from tests.protocol.state import State

AT_WORK = {"choose", "half", "train", "fence", "publish", "tell", "checkpoint", "end"}
"""Places of a learner whose history stands."""


def violations(model: Model, state: State, following: list[Action]) -> Iterator[str]:
    """What is wrong in a state, each thing in a sentence that begins with what is violated."""
    members = lineage(state)
    yield from _one_content(state)
    if members:
        yield from _one_history(model, state, members)
        yield from _consumed_once(model, state, members)
        yield from _half_done_kept(state, members)
        if state.learners[members[0]].place in AT_WORK:
            yield from _nothing_lost(model, state, members)
    if state.learners:
        yield from _owed_and_wished(model, state)
        yield from _going_on(model, state, following)
        yield from _looking(state, members, following)
    if state.seen_bases:
        yield from _recorded_once(model, state)


def _one_content(state: State) -> Iterator[str]:
    content: dict[int, tuple] = {}
    for published in state.published:
        if content.setdefault(published.version.number, published.weights) != published.weights:
            yield f"I2 version {published.version.number} names two contents"


def _one_history(model: Model, state: State, members: tuple[int, ...]) -> Iterator[str]:
    history = done_weights(state, members, model.bounds.steps)
    for step, weights in enumerate(history[1:], 1):
        if weights[:-1] != history[step - 1]:
            yield "I1 the done steps are not one history"
    for version, weights in state.published:
        if version.step <= kept(state.bases, members, version.attempt):
            if version.step >= len(history) or history[version.step] != weights:
                yield f"I2 version {version.number} is not the history's step {version.step}"
    for checkpoint in state.checkpoints:
        if checkpoint.step <= kept(state.bases, members, checkpoint.attempt):
            planned = {t for plan in plans(state, members, checkpoint.step) for t in (*plan.trained, *plan.dropped)}
            if planned != checkpoint.consumed:
                yield f"I6 the checkpoint of step {checkpoint.step} consumes what no plan does"


def _consumed_once(model: Model, state: State, members: tuple[int, ...]) -> Iterator[str]:
    consumed: set[int] = set()
    prompts: set[int] = set()
    ordinal = 0
    for plan in plans(state, members, model.bounds.steps):
        for ticket in (*plan.trained, *plan.dropped):
            if ticket in consumed:
                yield f"I3 ticket {ticket} is consumed twice"
            consumed.add(ticket)
        for ticket in plan.trained:
            sample = state.tickets[ticket].slot
            if sample.prompt in prompts:
                yield f"I3 prompt {sample.prompt} is trained twice"
            prompts.add(sample.prompt)
            late = ordinal - sample.version.ordinal
            if not 0 <= late <= model.bounds.staleness:
                yield f"I5 ticket {ticket} is trained {late} publishes late"
        ordinal = plan.ordinal
    if model.bounds.lockstep and not model.bounds.diverge:
        yield from _as_never_killed(model, state, members)


def _as_never_killed(model: Model, state: State, members: tuple[int, ...]) -> Iterator[str]:
    """In lockstep tickets are trained in order, each sampled by the version its place demands."""
    ordinal, trained = 0, []
    for plan in plans(state, members, model.bounds.steps):
        for ticket in plan.trained:
            if state.tickets[ticket].slot.version.ordinal != ordinal:
                yield f"I1 a process that was killed changes the weights: ticket {ticket} is sampled early"
        trained += plan.trained
        ordinal = plan.ordinal
    if not model.bounds.rewinds and trained != sorted(trained):
        yield "I1 tickets are trained out of order"


def _half_done_kept(state: State, members: tuple[int, ...]) -> Iterator[str]:
    for place, attempt in enumerate(members):
        later = [state.bases[member] for member in members[:place]]
        for step, trained in state.bases[attempt].owed:
            if step > min((base.step for base in later if base.rewind is not None), default=step):
                continue
            plan = state.plans[owner(state.bases, members, step)][step]
            if plan is not None and plan.trained != trained:
                yield f"I7 the half-done step {step} is chosen again"


def _nothing_lost(model: Model, state: State, members: tuple[int, ...]) -> Iterator[str]:
    """Every prompt that was begun belongs to one ticket that is consumed or can still be, or waits to be given out."""
    learner = state.learners[members[0]]
    carried: list[int] = []
    for ticket, claimed in enumerate(state.tickets):
        if claimed is None:
            continue
        why = void(state, members, ticket)
        if why == "void_version":
            yield f"I3 the prompt of ticket {ticket} is lost with its version"
        if why is not None:
            continue
        carried.append(prompt_of(state, members, ticket))
        samples = [claimed.slot] if claimed.slot else [work.sample for work in claimed.works]
        if any(sample.prompt != carried[-1] for sample in samples):
            yield f"I3 ticket {ticket} is sampled for another prompt than its own"
        unreadable = claimed.archived and "archive" not in model.rules
        if unreadable and ticket not in learner.consumed:
            yield f"I3 ticket {ticket} is archived, unconsumed, and cannot be chosen"
    waiting, following = _to_come(state, members)
    if sorted([*carried, *waiting]) != list(range(following)):
        yield "I3 a prompt is lost or given out twice"


def _to_come(state: State, members: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Re-issued prompts that no ticket has had, and the first prompt that none ever had."""
    end = sum(claimed is not None for claimed in state.tickets)
    for attempt in members:
        base = state.bases[attempt]
        if base.first_ticket is not None:
            index = given_out(state, attempt, end)
            return base.prompts[index:], nth_prompt(base.prompts, base.next_prompt, max(index, len(base.prompts)))
    return (), end


def _owed_and_wished(model: Model, state: State) -> Iterator[str]:
    newest = len(state.learners) - 1
    learner = state.learners[newest]
    if learner.place not in AT_WORK - {"fence", "publish"} or head(state.bases) != newest:
        return
    members = chain(state.bases, newest)
    numbers = {published.version.number for published in state.published}
    if 0 not in numbers:
        yield "I4 version 0 is owed and never published"
    for plan in plans(state, members, learner.step):
        if plan.publish is not None and plan.publish not in numbers:
            yield f"I4 version {plan.publish} is owed and never published"
    fulfilled = max((state.bases[one].rewind for one in members if state.bases[one].rewind is not None), default=-1)
    for number, wish in enumerate(state.wishes):
        if wish.attempts <= newest and number > fulfilled:
            yield f"I9 the wish to go back to step {wish.step} is forgotten"


def _going_on(model: Model, state: State, following: list[Action]) -> Iterator[str]:
    """The newest learner and the generators can go on by themselves, or the bound of tickets is reached."""
    newest = len(state.learners) - 1
    place = state.learners[newest].place
    if place in ("end", "stopped") or any(
        what.startswith((f"learner {newest} ", "generator ")) for what, _ in following
    ):
        return
    if place != "choose" or None in state.tickets:
        yield f"I4 the newest learner waits for ever ({place})"
    elif not model.bounds.rewinds:
        yield "I4 groups were lost: every ticket is used up"


def _looking(state: State, members: tuple[int, ...], following: list[Action]) -> Iterator[str]:
    """A generator that is behind the history, and has nothing in work, may look at it."""
    newest = newest_version(state.bases, state.published, members)
    busy = {work.generator for claimed in state.tickets if claimed for work in claimed.works}
    for number, generator in enumerate(state.generators):
        behind = generator.serving is not None and (generator.serving, generator.view) != (newest, members[0])
        if behind and newest is not None and number not in busy:
            if not any(what.startswith(f"generator {number} serves") for what, _ in following):
                yield f"I4 generator {number} stays behind the history for ever"


def _recorded_once(model: Model, state: State) -> Iterator[str]:
    bases = state.seen_bases
    assert bases is not None
    members = chain(bases, head(bases))
    seen = state._replace(bases=bases, plans=state.seen_plans or state.plans)
    if "live_rows" in model.rules:
        rows = plans(seen, members, model.bounds.steps)
    else:
        rows = [plan for own in seen.plans for plan in own if plan]
    shown = [ticket for plan in rows for ticket in (*plan.trained, *plan.dropped)]
    if len(shown) != len(set(shown)):
        yield "I8 the recorder shows a ticket twice"
