"""Tools that tests call, fit and unfit."""

from __future__ import annotations

import asyncio
import enum
import functools
import sys
import threading
import time
from collections.abc import Iterator

STARTED: list[str] = []
"""Who was called, in order; tests empty it."""


def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


async def wait_a_moment(seconds: float = 0.01) -> str:
    """Wait without holding anybody up.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


def note(word: str) -> str:
    """Write a word down.

    Args:
        word: The word.
    """
    STARTED.append(word)
    return f"noted {word}"


def divide(a: float, b: float) -> float:
    """Divide two numbers.

    Args:
        a: The dividend.
        b: The divisor.
    """
    if b == 0:
        raise ValueError("b is 0")
    return a / b


def sleep(seconds: float) -> str:
    """Hold a thread.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return threading.current_thread().name


def leave() -> str:
    """End the interpreter."""
    sys.exit(3)


async def leave_the_loop() -> str:
    """End the interpreter from the loop."""
    sys.exit(3)


def say(text: str, times: int = 1) -> str:
    """Repeat a text.

    Args:
        text: The text.
        times: How often.
    """
    return text * times


def listed() -> list[dict[str, int]]:
    """List what there is."""
    return [{"é": 1}]


def typed(text: str = "", numbers: list[int] | None = None, table: dict[str, int] | None = None) -> str:
    """Tell what came.

    Args:
        text: A text.
        numbers: A list.
        table: An object.
    """
    return f"{text!r} {numbers} {table}"


def numbers_of_no_json() -> dict[str, list[float]]:
    """Return what JSON has no numbers for."""
    return {"é": [1.5, float("nan"), float("inf"), float("-inf")]}


def round_and_round() -> list[list[int]]:
    """Return a list that holds itself."""
    found: list[list[int]] = []
    found.append(found)  # pyright: ignore[reportArgumentType]
    return found


class Colour(enum.Enum):
    """Looks up what is none of its values, as enumerations may."""

    RED = "red"
    GREEN = "green"

    @classmethod
    def _missing_(cls, value: object) -> Colour:
        if value == "leave":
            sys.exit(3)
        return {"rouge": cls.RED}[str(value)]


def paint(colour: Colour) -> str:
    """Paint in a colour.

    Args:
        colour: The colour.
    """
    return colour.name


class Unspeakable:
    """Has no words, and ends the interpreter that asks for them."""

    def __str__(self) -> str:
        raise SystemExit(3)


def unspeakable() -> dict[str, str]:
    """Return what cannot be told."""
    return {"a": Unspeakable()}  # pyright: ignore[reportReturnType]


def without_docstring(a: int) -> int:
    return a


def without_type(a) -> int:
    """Has an argument without a type.

    Args:
        a: A number.
    """
    return a


def without_return_type(a: int):
    """Has a result without a type.

    Args:
        a: A number.
    """
    return a


def without_description(a: int) -> int:
    """Has an argument that the docstring does not explain."""
    return a


def of_any_number(*numbers: int) -> int:
    """Takes what comes.

    Args:
        numbers: Numbers.
    """
    return sum(numbers)


def in_pieces(a: int) -> Iterator[int]:
    """Yields.

    Args:
        a: A number.
    """
    yield a


class Callable:
    """An object."""

    def __call__(self, a: int) -> int:
        return a


an_object = Callable()
a_partial = functools.partial(add, 1)
a_lambda = lambda a: a  # noqa: E731
