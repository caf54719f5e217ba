"""Which columns of the database are held against the run folder: all of documents, of slots all but tokens, texts and times of day."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from agrpo.database.schema import table_schemas

Row = tuple[Any, ...]

SLOT_COLUMNS = {
    "groups": (
        "ticket, num_rollouts, prompt_id, model_version, model_attempt, model_step, model_ordinal, base, claim_try, "
        "generator, refusal, environment, epoch, row_index, concurrency, concurrency_cap, backpressure_seconds, "
        "interval_seconds, load_wait_seconds, ceiling_wait_seconds, score_block_seconds, num_polls, kv_cache_usage, "
        "running_requests, queued_requests, preemptions, retries"
    ),
    "rollouts": (
        "ticket, rollout_index, num_completion_tokens, num_turns, rollout_id, seed, stop_reason, error, tool_call_count, "
        "tool_failure_count, own_reward, own_columns, duration_seconds, environment_class, reset_seconds, get_reward_seconds"
    ),
    "tool_calls": "ticket, rollout_index, call_index, turn_index, name, duration_seconds, failure",
    "scored_groups": (
        "ticket, prompt_id, model_version, model_attempt, model_step, model_ordinal, base, marks, refusal, left_out_by, score_seconds, "
        "score_wait_seconds, score_queue_size"
    ),
    "scores": "ticket, rollout_index, reward, duplicate",
    "rewards": "ticket, rollout_index, name, weight, value, error, duration_seconds",
}
_LEFT_OUT = {"runs": ("url",), "samples": ("log_probs", "entropies")}
"""A run that was moved has another URL; lists of tokens are left to a rebuild."""


@cache
def columns_of(table: str) -> tuple[str, ...]:
    """The names, in the order of their rows."""
    if table in SLOT_COLUMNS:
        return tuple(SLOT_COLUMNS[table].split(", "))
    return tuple(name for name in table_schemas()[table].names if name not in _LEFT_OUT.get(table, ()))


def rows_of(table: str, found: pa.Table) -> list[Row]:
    """The rows of an Arrow table of that name; columns that it lacks are NULL."""
    held = set(found.column_names)
    values = [found.column(name).to_pylist() if name in held else [None] * len(found) for name in columns_of(table)]
    return [tuple(map(_hashable, row)) for row in zip(*values, strict=True)]


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
