"""Rewards that tests of whole runs use."""

from __future__ import annotations

from typing import Any


def distinct_tokens(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A fine-grained reward, so that the rollouts of a group differ."""
    return [len(set(ids)) + 0.001 * (sum(ids) % 97) for ids in completion_ids]


def always_one(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Nothing to prefer."""
    return [1.0 for _ in completion_ids]


def never_any(completion_ids: list[list[int]], **columns: Any) -> list[None]:
    """Nothing to say."""
    return [None for _ in completion_ids]


def by_kind(completion_ids: list[list[int]], kind: list[str], **columns: Any) -> list[float]:
    """As `distinct_tokens`, but a prompt whose `kind` is flat always earns 1."""
    fine = distinct_tokens(completion_ids)
    return [1.0 if own == "flat" else value for own, value in zip(kind, fine, strict=True)]


def sometimes_even(completion_ids: list[list[int]], kind: list[str], **columns: Any) -> list[float | None]:
    """Share of even tokens; nothing to say of flat prompts, and of completions that begin with a multiple of three."""
    return [
        None if own == "flat" or ids[0] % 3 == 0 else sum(id % 2 == 0 for id in ids) / len(ids)
        for own, ids in zip(kind, completion_ids, strict=True)
    ]
