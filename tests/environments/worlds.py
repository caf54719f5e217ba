"""Environments that tests act in, fit and unfit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

HOLDING = threading.Event()
"""What hangs waits for it; tests set it when they end."""
MADE: list[object] = []
"""Instances of `Counting`, in the order in which they were made; tests empty it."""


class Game:
    """Guess a number between 1 and 9."""

    def __init__(self) -> None:
        self.target = 0
        self.num_guesses = 0
        self.solved = False

    def reset(self, target: int) -> str:
        self.target, self.num_guesses, self.solved = target, 0, False
        return "Guess a number between 1 and 9."

    def guess(self, value: int) -> str:
        """Guess the number.

        Args:
            value: The guess.
        """
        self.num_guesses += 1
        self.solved = self.solved or value == self.target
        return "right" if value == self.target else "higher" if value < self.target else "lower"

    def get_reward(self) -> float:
        return 1.0 / self.num_guesses if self.solved else 0.0


class Quiet:
    """Has nothing to say, nothing to call and nothing to pay."""

    def reset(self, **columns: Any) -> None:
        return None


class Awaiting:
    """All of it on the loop."""

    async def reset(self, **columns: Any) -> str:
        await asyncio.sleep(0)
        self.columns = columns
        return f" You know of {', '.join(sorted(columns))}."

    async def tell(self) -> list[str]:
        """Tell what columns there are."""
        await asyncio.sleep(0)
        return sorted(self.columns)

    async def get_reward(self) -> float:
        return float(len(self.columns))


class Counting:
    """Counts how it is used, and whether two rollouts use it at once."""

    def __init__(self) -> None:
        self.num_resets = 0
        self.users = 0
        self.crowded = False
        MADE.append(self)

    def reset(self, **columns: Any) -> str:
        self.num_resets += 1
        self.users = 1
        return "Count."

    def count(self) -> int:
        """Count one further."""
        self.users += 1
        seen = self.users
        time.sleep(0.002)
        self.crowded = self.crowded or self.users != seen
        return self.users - 1

    def get_reward(self) -> float:
        return float(self.users - 1)


class Failing:
    """Breaks where its row says: `factory` knows no row, so that `FailingFactory` does that."""

    def reset(self, breaks: str = "", **columns: Any) -> Any:
        self.breaks = breaks
        self._break("reset")
        return {"text": 7, "half a pair": "a\ud800"}.get(breaks)

    def call(self) -> str:
        """Call it."""
        self._break("tool")
        return "called"

    def get_reward(self) -> Any:
        self._break("get_reward")
        return {"no number": "much", "nan": float("nan"), "nothing": None}.get(self.breaks, 2.5)

    def _break(self, place: str) -> None:
        if self.breaks == f"{place} raises":
            raise KeyError(place)
        if self.breaks == f"{place} leaves":
            raise SystemExit(3)
        if self.breaks == f"{place} hangs":
            HOLDING.wait(10)


class Unmade:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no display")

    def reset(self) -> None: ...


class Sharing:
    """Keeps its state where every instance sees it."""

    WORDS: ClassVar[list[str]] = ["a constant"]
    seen: ClassVar[dict[str, int]] = {}

    def __init__(self, past: list[str] = []) -> None:  # noqa: B006
        self.past = past
        self.mine: list[str] = []

    def reset(self, **columns: Any) -> None: ...

    def get_reward(self) -> float:
        return 1.0


class WithoutReset:
    def get_reward(self) -> float:
        return 1.0


class AsksForMore:
    def reset(self) -> None: ...

    def get_reward(self, strictly: bool) -> float:
        return float(strictly)


class AsksForThePrompt:
    def reset(self, prompt: Any) -> str:
        return str(prompt)


class AsksWhichOne:
    def reset(self, environment: str, **columns: Any) -> str:
        return environment


class WithoutGuess(Game):
    guess = None  # type: ignore[assignment]

    def reset(self, prompt: Any = None, target: int = 1) -> str:  # type: ignore[override]
        return f"{prompt}{target}"


class ByPosition:
    def reset(self, target: int, /) -> None: ...


class UntypedTool:
    def reset(self) -> None: ...

    def look(self, where):
        """Look somewhere.

        Args:
            where: Where.
        """


class Yielding:
    def reset(self) -> None: ...

    def look(self) -> Iterator[str]:
        """Look."""
        yield "here"


class NeedsArguments:
    def __init__(self, size: int) -> None:
        self.size = size

    def reset(self) -> None: ...


ONE_GAME = Game()


def same_game() -> Game:
    """The same at every call."""
    return ONE_GAME


def small() -> NeedsArguments:
    return NeedsArguments(3)


def untyped_game():
    return Game()


async def awaited_game() -> Game:
    return Game()


def quiet_or_game() -> Any:
    """Another class at every other call."""
    MADE.append(None)
    return Quiet() if len(MADE) % 2 else Game()


a_lambda: Callable[[], Game] = lambda: Game()  # noqa: E731, PLW0108
a_number = 7


def guess(value: int) -> str:
    """Guess outside of any game.

    Args:
        value: The guess.
    """
    return str(value)


class Sized:
    """One with a setting that it needs, and one that it shares with nobody."""

    def __init__(self, size: int, names: list[str] | None = None) -> None:
        self.size = size
        self.names = names

    def reset(self, **columns: Any) -> str:
        return f"{self.size}"


def described(method: Any) -> Any:
    """It says itself what a model is told of it."""
    method.tool_schema = {
        "type": "function",
        "function": {"name": "look", "description": "Look.", "parameters": {}},
    }
    return method


class Described:
    """One whose tool says itself what it takes."""

    def reset(self) -> None: ...

    @described
    async def look(self, *, where: str) -> str:
        return where
