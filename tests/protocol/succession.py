"""A new attempt: it fences the older ones off, reads what they leave, replays, copies plans and writes its base."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.history import chain, head, kept, owner, plans
from tests.protocol.model import Action, Broken, Model, move
from tests.protocol.rewinding import rewinding_base
from tests.protocol.state import RETIRED, VOID, Base, Checkpoint, Learner, Plan, State, put, put_step


def accede(model: Model, state: State, attempt: int, learner: Learner) -> Iterator[Action]:
    """What an attempt does until its base is written."""
    if learner.place == "void":
        yield _void_or_read_bases(model, state, attempt, learner)
    elif learner.place == "read steps":
        yield _read_steps(model, state, attempt, learner)
    elif learner.place == "replay":
        for replayed in _replays(model, state, learner):
            yield move(state, attempt, replayed, f"replays to step {replayed.step}, half done {_told(replayed.half)}")
    elif learner.place == "base":
        yield _copy_or_write_base(model, state, attempt, learner)


def _void_or_read_bases(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    older = next((one for one in range(attempt) if state.bases[one] is None), None)
    if "tombs" in model.rules and older is not None:
        return move(state, attempt, learner, f"declares attempt {older} void", bases=put(state.bases, older, VOID))
    parent = head(state.bases)
    if parent is not None:
        return move(state, attempt, learner._replace(place="read steps", parent=parent), "reads the bases")
    if attempt and "first" not in model.rules:
        return move(state, attempt, learner._replace(place="lost"), "finds no base, and knows no more")
    first = Checkpoint(0, attempt, (), frozenset(), 0)
    begun = learner._replace(place="base", base=Base(None, 0, 0))
    return move(state, attempt, begun, "writes checkpoint 0", checkpoints=state.checkpoints | {first})


def _read_steps(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    """The last done step, and whether the run shall go back."""
    parent = learner.parent
    assert parent is not None
    done = [step for step, weights in enumerate(state.dones[parent]) if weights is not None]
    last = max([state.bases[parent].step, *done])
    wish = _wish(model, state, attempt, chain(state.bases, parent))
    return move(state, attempt, learner._replace(place="replay", last=last, wish=wish), f"reads the steps: {last} done")


def _wish(model: Model, state: State, attempt: int, members: tuple[int, ...]) -> int | None:
    """The newest wish that no base of the chain fulfils."""
    fulfilled = [state.bases[one].rewind for one in members if state.bases[one].rewind is not None]
    newest = len(state.wishes) - 1
    if newest <= max(fulfilled, default=-1):
        return None
    forgotten = "wishes" not in model.rules and state.wishes[newest].attempts != attempt
    return None if forgotten else newest


def _replays(model: Model, state: State, learner: Learner) -> Iterator[Learner]:
    """The learner with its history in memory, from the newest checkpoint, or from the oldest where that is damaged."""
    members = chain(state.bases, learner.parent)
    last, half = learner.last, _half_done(model, state, learner)
    if learner.wish is not None:
        last, half = min(last, state.wishes[learner.wish].step), ()
    usable = [one for one in state.checkpoints if one.step <= min(last, kept(state.bases, members, one.attempt))]
    usable.sort(key=lambda one: (one.step, one.attempt))
    found = {_replay(model, state, learner, checkpoint, last) for checkpoint in (usable[0], usable[-1])}
    if len({(at.step, at.weights, at.consumed) for at in found}) > 1 and not model.bounds.diverge:
        raise Broken("I6 two checkpoints lead to different histories")
    for at in found:
        if at.step < last and at.wish is not None:
            yield RETIRED._replace(place="stopped")  # nobody goes back over a replay that differs
        else:
            yield _with_base(model, state, at, last, half)


def _half_done(model: Model, state: State, learner: Learner) -> tuple:
    written = state.plans[learner.parent]
    half = [(step, written[step]) for step in range(learner.last + 1, model.bounds.steps + 1) if written[step]]
    return tuple(half)


def _replay(model: Model, state: State, learner: Learner, checkpoint: Checkpoint, last: int) -> Learner:
    """The learner after the last step that agrees."""
    at = learner._replace(place="base", known=checkpoint.next_ticket)
    members = chain(state.bases, learner.parent)
    weights, consumed = checkpoint.weights, checkpoint.consumed
    for step, plan in enumerate(plans(state, members, last)[checkpoint.step :], checkpoint.step + 1):
        if any(state.tickets[ticket].slot is None for ticket in plan.trained):
            raise Broken("I6 a replay needs a group that is not there")
        after = (*weights, (plan.trained, learner.machine))
        if after != state.dones[owner(state.bases, members, step)][step]:
            if not model.bounds.diverge:
                raise Broken(f"I1 the replay of step {step} differs from what is done")
            return at._replace(step=step - 1, weights=weights, consumed=consumed)
        weights, consumed = after, consumed | set(plan.trained) | set(plan.dropped)
    return at._replace(step=last, weights=weights, consumed=consumed)


def _with_base(model: Model, state: State, learner: Learner, last: int, half: tuple) -> Learner:
    """What the base will say, which version comes next, and which plans are carried over."""
    members = chain(state.bases, learner.parent)
    history = plans(state, members, last)
    ordinal = history[learner.step - 1].ordinal if learner.step else 0
    number = _next_number(model, state, learner, history)
    if learner.wish is not None:
        base = rewinding_base(model, state, learner)
        return learner._replace(base=base, number=number, ordinal=ordinal)
    if learner.step < last:
        half = _done_again(model, history, learner.step, half, number)
    through = max(last, state.bases[learner.parent].through) if "through" in model.rules else last
    owed = tuple((step, plan.trained) for step, plan in half)
    base = Base(learner.parent, learner.step, through, owed=owed)
    return learner._replace(base=base, number=number, ordinal=ordinal, half=half)


def _next_number(model: Model, state: State, learner: Learner, history: list[Plan]) -> int:
    """While the history never left a step behind, one more than its newest version; then than any number planned."""
    older = [base for base in state.bases if base and base != VOID]
    leaves = learner.wish is not None or learner.step < len(history)
    straight = not leaves and all(base.first_ticket is None and base.through == base.step for base in older)
    if straight or "numbers" not in model.rules:
        named = history[: learner.step]
    else:
        named = [plan for own in state.plans for plan in own if plan]
    return 1 + max((plan.publish for plan in named if plan.publish is not None), default=0)


def _done_again(model: Model, history: list[Plan], agreed: int, half: tuple, number: int) -> tuple:
    """After a divergence: the plans since, to be done again and published once more under a new number."""
    more = 0 if "ordinals" in model.rules else 1
    again = [(step, history[step - 1]._replace(publish=None)) for step in range(agreed + 1, len(history) + 1)]
    again[-1] = (len(history), again[-1][1]._replace(publish=number, ordinal=history[-1].ordinal + more))
    for step, plan in half:
        number += plan.publish is not None
        again.append((step, _renumbered(model, plan, number)._replace(ordinal=plan.ordinal + more)))
    return tuple(again)


def _renumbered(model: Model, plan: Plan, number: int) -> Plan:
    return plan if plan.publish is None or "numbers" not in model.rules else plan._replace(publish=number)


def _copy_or_write_base(model: Model, state: State, attempt: int, learner: Learner) -> Action:
    if state.bases[attempt] is not None:
        return move(state, attempt, RETIRED, "is void: retired")
    if "adopt" in model.rules:
        for step, plan in learner.half:
            if state.plans[attempt][step] is None:
                copied = put_step(state.plans, attempt, step, plan)
                return move(state, attempt, learner, f"copies plan {step}", plans=copied)
    base = learner.base
    assert base is not None
    said = f"writes its base: step {base.step}" + (f", back by wish {base.rewind}" if base.rewind is not None else "")
    entered = learner._replace(place="owed", base=None)
    return move(state, attempt, entered, said, bases=put(state.bases, attempt, base))


def _told(half: tuple) -> list[int]:
    return [step for step, _ in half]
