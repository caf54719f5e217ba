"""Rewards to ask what-ifs with."""

from __future__ import annotations

from typing import Any

from tests.stages.judges import distinct_tokens


def same(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """What the run was judged by."""
    return distinct_tokens(completion_ids)


def negated(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """The opposite."""
    return [-value for value in distinct_tokens(completion_ids)]


def moody(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Fails on completions of one length."""
    if len(completion_ids[0]) == 6:
        raise ValueError("six tokens are too many")
    return distinct_tokens(completion_ids)


def broken(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Never answers."""
    raise ValueError("not today")
