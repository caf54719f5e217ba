"""A reward that a random policy earns unevenly, so that every group teaches something."""

from __future__ import annotations

from typing import Any


def distinct_tokens(
    prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any
) -> list[float]:
    """Share of a completion's tokens that it has once, the last one excepted: lengths alone differ too."""
    return [len(set(ids)) / (1 + len(ids)) + 0.001 * (ids[0] % 7 if ids else 0) for ids in completion_ids]
