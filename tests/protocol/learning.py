"""The learner's steps: plan, done, fence, version, word to the generators, checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tests.protocol.history import chain, owner, void
from tests.protocol.model import Action, Model, move
from tests.protocol.state import (
    RETIRED,
    Checkpoint,
    Hint,
    Learner,
    Plan,
    Published,
    State,
    Version,
    put_step,
)
from tests.protocol.succession import accede

AHEAD = 1
"""Unconsumed tickets that a hint lets generators begin."""


def learn(model: Model, state: State, attempt: int) -> Iterator[Action]:
    """What one attempt may do next."""
    learner = state.learners[attempt]
    match learner.place:
        case "void" | "read steps" | "replay" | "base":
            yield from accede(model, state, attempt, learner)
        case "owed":
            yield _look_for_owed(model, state, attempt, learner)
        case "publish owed" | "publish":
            yield _publish(model, state, attempt, learner)
        case "choose":
            yield from _choose(model, state, attempt, learner)
        case "half":
            yield _carry_over(model, state, attempt, learner)
        case "train":
            yield _finish(model, state, attempt, learner)
        case "fence":
            yield _look_at_fence(model, state, attempt, learner)
        case "tell":
            yield _tell(model, state, attempt, learner)
        case "checkpoint":
            yield _keep(model, state, attempt, learner)


# What the parent owes, and left half done.


def _look_for_owed(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    owed = _owed(model, state, attempt, learner)
    if "owed" not in model.rules and learner.step > 0:
        owed = None
    if owed is None or any(one.version.number == owed.number for one in state.published):
        return move(state, attempt, learner._replace(place=_next(model, learner)), "finds nothing owed")
    return move(state, attempt, learner._replace(place="publish owed"), f"finds version {owed.number} owed")


def _owed(model: Model, state: State, attempt: int, learner: Learner) -> Version | None:
    """The version that the weights in memory are, where their step publishes."""
    if learner.step == 0:
        return Version(0, attempt, 0, 0) if "version_0" in model.rules or learner.parent is None else None
    member = owner(state.bases, chain(state.bases, attempt), learner.step)
    plan = state.plans[member][learner.step]
    return None if plan.publish is None else Version(plan.publish, attempt, learner.step, plan.ordinal)


def _next(model: Model, learner: Learner) -> str:
    if learner.half:
        return "half"
    return "end" if learner.step >= model.bounds.steps else "choose"


def _carry_over(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    """Take up a plan that the parent left half done."""
    (step, plan), *others = learner.half
    taken = learner._replace(place="train", half=tuple(others))
    if state.plans[attempt][step] is None:
        return move(state, attempt, taken, f"copies plan {step}", plans=put_step(state.plans, attempt, step, plan))
    return move(state, attempt, taken, f"takes plan {step} up")


# One step.


def _choose(model: Model, state: State, attempt: int, learner: Learner) -> Iterator[Action]:
    if model.bounds.hinted and "hint_again" in model.rules:
        word = _word(learner)
        if word != (state.hint if "hint_there" in model.rules else learner.told):
            yield move(state, attempt, learner._replace(told=word), f"tells {tuple(word)} again", hint=word)
    members = chain(state.bases, attempt)
    good, bad = _sorted_out(model, state, members, learner)
    for chosen in combinations(good, model.bounds.groups):
        plan = _plan(model, learner, chosen, bad)
        said = f"plans step {learner.step + 1}: trains {list(chosen)}, drops {list(plan.dropped)}"
        written = put_step(state.plans, attempt, learner.step + 1, plan)
        yield move(state, attempt, learner._replace(place="train"), said, plans=written)
    if bad and not model.bounds.lockstep:
        field = "taken" if "plans_consume" in model.rules else "consumed"
        dropped = learner._replace(**{field: getattr(learner, field) | set(bad)})
        yield move(state, attempt, dropped, f"drops {bad} in memory")


def _sorted_out(model: Model, state: State, members: tuple, learner: Learner) -> tuple[list[int], list[int]]:
    """The open tickets that may be trained, and those to be dropped; in lockstep only as far as the step needs them."""
    good: list[int] = []
    bad: list[int] = []
    for ticket in range(model.bounds.tickets):
        if ticket in learner.consumed or ticket in learner.taken:
            continue
        if (verdict := _verdict(model, state, members, learner, ticket)) is not None:
            (good if verdict == "" else bad).append(ticket)
        if model.bounds.lockstep and (verdict is None or len(good) == model.bounds.groups):
            break
    return good, bad


def _verdict(model: Model, state: State, members: tuple, learner: Learner, ticket: int) -> str | None:
    """Why a ticket is dropped; "" where it may be trained, None where it cannot be read yet."""
    claimed = state.tickets[ticket]
    if claimed is None:
        return None
    if why := void(state, members, ticket, reissue="reissue" in model.rules):
        return why
    if claimed.slot is None or (claimed.archived and "archive" not in model.rules):
        return None
    if claimed.slot.prompt in model.bounds.flat:
        return "flat"
    return "stale" if learner.ordinal - claimed.slot.version.ordinal > model.bounds.staleness else ""


def _plan(model: Model, learner: Learner, chosen: tuple, bad: list[int]) -> Plan:
    due = (learner.step + 1) % model.bounds.sync == 0
    dropped = tuple(sorted({*bad, *learner.taken}))
    return Plan(chosen, dropped, learner.number if due else None, learner.ordinal + due)


def _finish(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    step = learner.step + 1
    plan = state.plans[attempt][step]
    weights = (*learner.weights, (plan.trained, learner.machine))
    done = learner._replace(
        place="fence",
        step=step,
        weights=weights,
        consumed=learner.consumed | set(plan.trained) | set(plan.dropped),
        taken=learner.taken - set(plan.dropped),
        ordinal=plan.ordinal,
        number=learner.number if plan.publish is None else plan.publish + 1,
    )
    return move(state, attempt, done, f"writes step {step} done", dones=put_step(state.dones, attempt, step, weights))


def _look_at_fence(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    if "fence" in model.rules and len(state.learners) > attempt + 1:
        return move(state, attempt, RETIRED, "sees a newer attempt: retired")
    due = state.plans[attempt][learner.step].publish is not None
    place = "publish" if due else _after_publish(model, learner)
    return move(state, attempt, learner._replace(place=place), "sees no newer attempt")


def _publish(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    version = _owed(model, state, attempt, learner)
    assert version is not None
    place = _next(model, learner) if learner.place == "publish owed" else _after_publish(model, learner)
    published = state.published | {Published(version, learner.weights)}
    said = f"publishes version {version.number} of step {version.step}"
    return move(state, attempt, learner._replace(place=place), said, published=published)


def _after_publish(model: Model, learner: Learner) -> str:
    if model.bounds.hinted:
        return "tell"
    return "checkpoint" if learner.step % model.bounds.checkpoint_every == 0 else _next(model, learner)


def _tell(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    word = _word(learner)
    due = learner.step % model.bounds.checkpoint_every == 0
    told = learner._replace(place="checkpoint" if due else _next(model, learner), told=word)
    return move(state, attempt, told, f"tells {tuple(word)}", hint=word)


def _word(learner: Learner) -> Hint:
    """How far generators may go, and how many tickets were dropped."""
    gone = learner.consumed | learner.taken
    trained = sum(len(tickets) for tickets, _ in learner.weights)
    return Hint(len(gone) + AHEAD, len(gone) - trained)


def _keep(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    claimed = sum(ticket is not None for ticket in state.tickets)
    kept = Checkpoint(learner.step, attempt, learner.weights, learner.consumed, claimed)
    said = f"writes the checkpoint of step {learner.step}"
    return move(
        state, attempt, learner._replace(place=_next(model, learner)), said, checkpoints=state.checkpoints | {kept}
    )
