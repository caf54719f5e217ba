"""The rollout that is under way: what `generate_one_turn` asks the engine for is found by it, with no argument for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from agrpo.errors import HookError

if TYPE_CHECKING:
    from agrpo.records.prompt import Message
    from agrpo.records.rollout import Rollout, TurnRecord

AskTurn = Callable[[list[int]], Awaitable["TurnRecord"]]
"""A turn for a whole prompt, in tokens."""


class UnderWay(Protocol):
    """One rollout, as the generator makes it."""

    async def ask(self, prompt_ids: list[int]) -> TurnRecord:
        """The rollout's next turn, from the engine."""
        ...

    async def converse(self, ask_turn: AskTurn, prompt: list[Message], tools: Sequence[Callable[..., Any]]) -> Rollout:
        """The whole rollout of these messages as agrpo makes it, each turn from `ask_turn`."""
        ...


UNDER_WAY: ContextVar[UnderWay] = ContextVar("agrpo_rollout_under_way")
"""Each rollout is a task of its own; tasks that it begins inherit it."""


def rollout_under_way(hook: str) -> UnderWay:
    """That of the task. Raises `HookError` where there is none."""
    try:
        return UNDER_WAY.get()
    except LookupError:
        raise HookError(
            f"{hook} was called outside of a rollout; it knows its rollout by the task that generate_one runs in: call it "
            "from there, or from tasks that it begins"
        ) from None
