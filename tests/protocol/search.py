"""Breadth-first search through every state within bounds, so that the trace to a violation is a shortest one."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from tests.protocol.invariants import violations
from tests.protocol.model import Broken, Model
from tests.protocol.rules import ALL
from tests.protocol.state import Bounds, first_state
from tests.protocol.world import actions


@dataclass(kw_only=True)
class Explored:
    """What a search has seen."""

    states: int = 0
    depth: int = 0
    complete: bool = False
    """Every state within the bounds was seen."""
    violation: str | None = None
    trace: list[str] = field(default_factory=list)
    """From the first state to the violation."""
    seconds: float = 0.0

    def __str__(self) -> str:
        seen = f"{self.states:,} states, depth {self.depth}, {'complete' if self.complete else 'not complete'}"
        told = [f"{seen}, {self.seconds:.1f} s, {self.violation or 'no violation'}"]
        return "\n".join([*told, *(f"  {number:2d} {what}" for number, what in enumerate(self.trace, 1))])


def search(bounds: Bounds, *, without: str | None = None, most_states: int = 10_000_000) -> Explored:
    """Explore until everything is seen, something is violated, or there are too many states.

    States are remembered by their 64-bit hashes.
    """
    assert without is None or without in ALL, f"no rule {without}; there are {', '.join(sorted(ALL))}"
    model = Model(bounds, ALL - {without})
    began = time.monotonic()
    first = first_state(bounds)
    parents: dict[int, tuple[int | None, str]] = {hash(first): (None, "")}
    waiting = deque([(first, hash(first), 0)])
    found = Explored()
    while waiting and len(parents) <= most_states:
        state, key, found.depth = waiting.popleft()
        try:
            following = list(actions(model, state))
            found.violation = next(violations(model, state, following), None)
        except Broken as broken:
            found.violation = str(broken)
        if found.violation:
            found.trace = _trace(parents, key)
            break
        for what, after in following:
            other = hash(after)
            if other not in parents:
                parents[other] = (key, what)
                waiting.append((after, other, found.depth + 1))
    found.states, found.seconds = len(parents), time.monotonic() - began
    found.complete = not waiting and found.violation is None
    return found


def _trace(parents: dict[int, tuple[int | None, str]], key: int) -> list[str]:
    told: list[str] = []
    while True:
        before, what = parents[key]
        if before is None:
            return told[::-1]
        told.append(what)
        key = before
