"""The tools of the calculator, and the reward of what the policy says in the end."""

from __future__ import annotations

from typing import Any


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.

    Returns:
        Their sum.
    """
    return a + b


def sub(a: int, b: int) -> int:
    """Subtract one number from another.

    Args:
        a: The number to subtract from.
        b: The number to subtract.

    Returns:
        The difference.
    """
    return a - b


def right_answer(completions: list[list[dict[str, Any]]], answer: list[str], **columns: Any) -> list[float]:
    """1 where the policy's last message is the answer. Calls earn nothing by themselves."""
    return [float(_said_last(messages) == right) for messages, right in zip(completions, answer, strict=True)]


def _said_last(messages: list[dict[str, Any]]) -> str:
    """Nothing, where a tool had the last word: the rollout was cut before the policy answered."""
    last = messages[-1]
    return last["content"].strip() if last["role"] == "assistant" else ""
