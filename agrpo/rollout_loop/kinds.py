"""Of what kind something is that a hook gave."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, cast


def is_finite(reward: Any) -> bool:
    """A number that is one."""
    try:
        return isinstance(reward, Real) and math.isfinite(reward)
    except OverflowError:  # an integer beyond what a float can hold
        return False


def are_all(values: Any, kind: type) -> bool:
    """A list of these and no others, nor of what derives from them."""
    return isinstance(values, list) and all(type(value) is kind for value in cast("list[Any]", values))


def is_time(seconds: Any) -> bool:
    """Seconds, or None where they are not known."""
    return seconds is None or (type(seconds) in (int, float) and 0 <= seconds < math.inf)


def are_messages(values: Any) -> bool:
    """A list of chat messages, each with a role, and a content that a template may be given."""
    return isinstance(values, list) and all(map(_is_message, cast("list[Any]", values)))


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    message = cast("dict[Any, Any]", value)
    content: Any = message.get("content")
    parts: list[Any] = cast("list[Any]", content) if isinstance(content, list) else []
    fits = content is None or isinstance(content, str | list)
    return isinstance(message.get("role"), str) and fits and all(isinstance(part, dict) for part in parts)


__all__ = ["are_all", "are_messages", "is_finite", "is_time"]
