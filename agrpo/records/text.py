r"""Text of others, made such that every file takes it: Python's may hold half a surrogate pair, which UTF-8 has no bytes for.

A model's bytes cannot give one, but rows of JSON and functions of users can: `json.loads('"\\ud800"')`, or a text cut in UTF-16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def writable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def writable_throughout(value: Any) -> Any:
    """Lists and dicts with `writable` texts and keys at any depth; everything else as it is."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        return {writable_throughout(key): writable_throughout(own) for key, own in given.items()}
    if isinstance(value, list):
        return [writable_throughout(own) for own in cast("list[Any]", value)]
    return value
