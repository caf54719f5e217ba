"""The protocol within bounds, and how one process moves."""

from __future__ import annotations

from dataclasses import dataclass

from tests.protocol.state import Bounds, Learner, State, put


@dataclass(frozen=True)
class Model:
    bounds: Bounds
    rules: frozenset[str]
    """Those that hold."""


class Broken(Exception):
    """A learner finds what must not be."""


Action = tuple[str, State]
"""What happens, and the state after it. At most one durable record is written."""


def move(state: State, attempt: int, learner: Learner, what: str, **changed: object) -> Action:
    learners = put(state.learners, attempt, learner)
    return f"learner {attempt} {what}", state._replace(learners=learners, **changed)
