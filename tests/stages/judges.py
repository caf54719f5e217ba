"""Rewards that tests of whole runs use."""

from __future__ import annotations

import os
import time
from typing import Any

from agrpo.records.trainer_state import TrainerState


def distinct_tokens(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A fine-grained reward, so that the rollouts of a group differ."""
    return [len(set(ids)) + 0.001 * (sum(ids) % 97) for ids in completion_ids]


def tells(
    completion_ids: list[list[int]], trainer_state: TrainerState, log_extra: Any, log_metric: Any, **columns: Any
) -> list[float]:
    """As `distinct_tokens`, and notes of how far the run is and of what it looked at."""
    log_extra("step", [trainer_state.global_step for _ in completion_ids])
    log_extra("first", [str(ids[:1]) for ids in completion_ids])
    log_metric("progress", trainer_state.global_step / (trainer_state.max_steps or 0))
    log_metric("judged/longest_max", max(map(len, completion_ids)))
    log_metric("judged/short_count", sum(len(ids) < 4 for ids in completion_ids))
    return distinct_tokens(completion_ids)


def unhurried(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """As `distinct_tokens`, and slow enough that what comes next has to wait for it."""
    time.sleep(1.5)
    return distinct_tokens(completion_ids)


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


def noted(prompts: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """Writes down who judged which prompt: the session of the reward's processes, which its scorer alone has."""
    with open(f"{os.environ['NOTES']}/{os.getsid(0)}", "a") as notes:
        notes.write(f"{prompts[0][0]['content']}\n")
    return [float(place) for place, _ in enumerate(prompts)]
