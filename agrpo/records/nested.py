"""What stands inside a row of a slot, as Arrow has it: the turns of a rollout, its tool calls, its stay in an environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import pyarrow as pa

from agrpo.records.rollout import CallFailure, Stay, StopReason, ToolCall, TurnRecord
from agrpo.records.top_tokens import TopTokens

IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("item", pa.float32(), nullable=False))

TURN = pa.struct(
    [
        ("prompt_ids", IDS),
        ("output_ids", IDS),
        ("output_log_probs", _FLOATS),
        ("output_mask", pa.list_(pa.field("item", pa.uint8(), nullable=False))),
        ("output_versions", IDS),
        ("output_sampling_mask", pa.list_(pa.field("item", IDS))),
        ("top_ids", pa.list_(pa.field("item", IDS))),
        ("top_logprobs", pa.list_(pa.field("item", _FLOATS))),
        ("stop_reason", pa.string()),
        ("begun_seconds", pa.float64()),
        ("duration_seconds", pa.float64()),
    ]
)

TOOL_CALL = pa.struct(
    [
        ("turn_index", pa.int32()),
        ("name", pa.string()),
        ("duration_seconds", pa.float64()),
        ("failure", pa.string()),
        ("reason", pa.string()),
    ]
)

STAY = pa.struct(
    [
        ("environment", pa.string()),
        ("reset_seconds", pa.float64()),
        ("reward_seconds", pa.float64()),
        ("reward", pa.float64()),
        ("reward_error", pa.string()),
    ]
)


def turn_to_arrow(turn: TurnRecord) -> dict[str, Any]:
    """As `TURN` has it."""
    top_ids, top_logprobs = _lists_of(turn.output_sampler_logprobs)
    return {
        "prompt_ids": turn.prompt_ids,
        "output_ids": turn.output_ids,
        "output_log_probs": turn.output_log_probs,
        "output_mask": turn.output_mask,
        "output_versions": turn.output_versions,
        "output_sampling_mask": turn.output_sampling_mask,
        "top_ids": top_ids,
        "top_logprobs": top_logprobs,
        "stop_reason": turn.stop_reason.value,
        "begun_seconds": turn.begun_seconds,
        "duration_seconds": turn.duration_seconds,
    }


def _lists_of(top: Sequence[dict[int, float]] | None) -> tuple[list[list[int]] | None, list[list[float]] | None]:
    if top is None:
        return None, None
    if isinstance(top, TopTokens):
        return top.lists()
    return [list(place) for place in top], [list(place.values()) for place in top]


def turns_from_arrow(column: pa.ChunkedArray) -> Iterator[list[TurnRecord]]:
    """The turns of each rollout. Most likely tokens never become Python objects: there are eight for each token."""
    of_rollouts = column.combine_chunks()
    flat = of_rollouts.flatten()
    names = [field.name for field in TURN if field.name not in ("top_ids", "top_logprobs")]
    plain = pa.StructArray.from_arrays([flat.field(name) for name in names], names).to_pylist()
    turns = map(_turn_from_arrow, plain, flat.field("top_ids"), flat.field("top_logprobs"))
    for count in of_rollouts.value_lengths().fill_null(0).to_pylist():
        yield list(islice(turns, count))


def _turn_from_arrow(turn: dict[str, Any], top_ids: pa.ListScalar, top_logprobs: pa.ListScalar) -> TurnRecord:
    return TurnRecord(
        prompt_ids=turn["prompt_ids"],
        output_ids=turn["output_ids"],
        output_log_probs=turn["output_log_probs"],
        output_mask=turn["output_mask"],
        output_sampling_mask=turn["output_sampling_mask"],
        output_sampler_logprobs=TopTokens.of_lists(top_ids.values, top_logprobs.values) if top_ids.is_valid else None,
        output_versions=turn["output_versions"],
        stop_reason=StopReason(turn["stop_reason"]),
        begun_seconds=turn["begun_seconds"],
        duration_seconds=turn["duration_seconds"],
    )


def stay_of(row: dict[str, Any]) -> Stay | None:
    """None also of a record that is older than they are."""
    return None if row["stay"] is None else Stay(**row["stay"])


def stay_to_arrow(stay: Stay | None) -> dict[str, Any] | None:
    """As `STAY` has it."""
    return None if stay is None else asdict(stay)


def null_throughout(column: pa.Array) -> pa.Array:
    """The column with null fields where a struct of it is null: so it comes out of Parquet, and so a slot can be archived."""
    if not pa.types.is_struct(column.type) or not column.null_count:
        return column
    rows, fields = column.to_pylist(), list(column.type)
    values = [pa.array([None if row is None else row[field.name] for row in rows], field.type) for field in fields]
    return pa.StructArray.from_arrays(values, fields=fields, mask=pa.array([row is None for row in rows]))


def tool_calls_of(row: dict[str, Any]) -> list[ToolCall]:
    """None of a record that is older than they are."""
    return [_tool_call(call) for call in row["tool_calls"] or []]


def _tool_call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(
        turn_index=call["turn_index"],
        name=call["name"],
        duration_seconds=call["duration_seconds"],
        failure=None if call["failure"] is None else CallFailure(call["failure"]),
        reason=call["reason"],
    )
