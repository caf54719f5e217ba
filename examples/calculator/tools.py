"""The tools of the example."""

from __future__ import annotations


def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def sub(a: int, b: int) -> int:
    """Subtract one whole number from another.

    Args:
        a: The number to subtract from.
        b: The number to subtract.
    """
    return a - b
