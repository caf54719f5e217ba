"""Groups and scores as Arrow: one record batch holds one group, one row per rollout, in the IPC file format.

The group's own facts are in the schema's metadata, so a group without rollouts (a refused prompt) is a record too.
Readers ignore columns they do not know, fill those that are missing, refuse a higher major schema version, and check
the file's checksum before they read it. `where` is what errors call the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import islice
from typing import Any

import pyarrow as pa

from agrpo.errors import RecordError, RecordTooNew
from agrpo.records.checksum import ARROW_KEY, UNSEALED, check_arrow, sealed_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.pace import Pace
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import CallFailure, Rollout, StopReason, ToolCall, TurnRecord
from agrpo.records.score import Mark, Score, ScoredGroup, Scoring
from agrpo.records.top_tokens import TopTokens

MAJOR = 1
VERSION = f"{MAJOR}.0"

_IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_FLOATS = pa.list_(pa.field("item", pa.float32(), nullable=False))

TURN = pa.struct(
    [
        ("prompt_ids", _IDS),
        ("output_ids", _IDS),
        ("output_log_probs", _FLOATS),
        ("output_mask", pa.list_(pa.field("item", pa.uint8(), nullable=False))),
        ("output_versions", _IDS),
        ("output_sampling_mask", pa.list_(pa.field("item", _IDS))),
        ("top_ids", pa.list_(pa.field("item", _IDS))),
        ("top_logprobs", pa.list_(pa.field("item", _FLOATS))),
        ("stop_reason", pa.string()),
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

GROUP_SCHEMA = pa.schema(
    [
        ("ticket", pa.int64()),
        ("rollout_index", pa.int16()),
        ("rollout_id", pa.string()),
        ("seed", pa.int64()),
        ("stop_reason", pa.string()),
        ("error", pa.string()),
        ("completion", pa.string()),
        ("completion_ids", _IDS),
        ("turns", pa.list_(TURN)),
        ("tool_call_count", pa.int32()),
        ("tool_failure_count", pa.int32()),
        ("reward", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("tool_calls", pa.list_(TOOL_CALL)),
    ]
)

SCORED_SCHEMA = pa.schema(
    [
        ("ticket", pa.int64()),
        ("rollout_index", pa.int16()),
        ("reward", pa.float64()),
        ("num_prompt_tokens", pa.int32()),
        ("num_completion_tokens", pa.int32()),
        ("num_forwarded_tokens", pa.int32()),
        ("terminated", pa.bool_()),
        ("duplicate", pa.bool_()),
        ("num_turns", pa.int32()),
        ("num_sequences", pa.int32()),
        ("duration_seconds", pa.float64()),
        ("drift_tokens", _IDS),
        ("tool_calls", pa.list_(TOOL_CALL)),
        ("loop_exhausted", pa.bool_()),
        (
            "scores",
            pa.list_(
                pa.struct(
                    [
                        ("reward", pa.string()),
                        ("weight", pa.float64()),
                        ("value", pa.float64()),
                        ("error", pa.string()),
                        ("duration_seconds", pa.float64()),
                    ]
                )
            ),
        ),
    ]
)


def group_to_arrow(group: RolloutGroup) -> pa.Buffer:
    """The group as an IPC file."""
    facts = {
        "ticket": group.ticket,
        "prompt": asdict(group.prompt),
        "model_version": group.model_version,
        "model_attempt": group.model_attempt,
        "model_step": group.model_step,
        "model_ordinal": group.model_ordinal,
        "base": group.base,
        "claim_try": group.claim_try,
        "generator": group.generator,
        "refusal": group.refusal,
        "filtered": group.filtered,
        "claimed_at": group.claimed_at,
        "finished_at": group.finished_at,
        "queued_at": group.queued_at,
        "pace": group.pace and asdict(group.pace),
    }
    rows = [
        {
            "ticket": group.ticket,
            "rollout_index": rollout.index,
            "rollout_id": rollout.rollout_id,
            "seed": rollout.seed,
            "stop_reason": rollout.stop_reason.value,
            "error": rollout.error,
            "completion": json.dumps(rollout.completion, ensure_ascii=False),
            "completion_ids": rollout.completion_ids,
            "turns": [_turn_to_arrow(turn) for turn in rollout.turns],
            "tool_call_count": rollout.tool_call_count,
            "tool_failure_count": rollout.tool_failure_count,
            "reward": rollout.reward,
            "duration_seconds": rollout.duration_seconds,
            "tool_calls": [asdict(call) for call in rollout.tool_calls],
        }
        for rollout in group.rollouts
    ]
    return _write(rows, GROUP_SCHEMA, "group", facts)


def group_from_arrow(data: pa.Buffer | bytes, where: str | None = None) -> RolloutGroup:
    """The group in an IPC file. Raises `RecordError`."""
    table, facts = _read(data, GROUP_SCHEMA, "group", where)
    prompt = Prompt(**facts.pop("prompt"))
    pace = _pace(facts.pop("pace", None))
    rows, turns = table.drop_columns(["turns"]).to_pylist(), _turns_from_arrow(table.column("turns"))
    rollouts = [_rollout_from_arrow(row, own) for row, own in zip(rows, turns, strict=True)]
    return RolloutGroup(prompt=prompt, rollouts=rollouts, pace=pace, **facts)


def scored_to_arrow(scored: ScoredGroup) -> pa.Buffer:
    """The scores as an IPC file."""
    facts = {
        "ticket": scored.ticket,
        "prompt_id": scored.prompt_id,
        "model_version": scored.model_version,
        "model_attempt": scored.model_attempt,
        "model_step": scored.model_step,
        "model_ordinal": scored.model_ordinal,
        "base": scored.base,
        "marks": sorted(scored.marks),
        "refusal": scored.refusal,
        "generated_at": scored.generated_at,
        "scored_at": scored.scored_at,
        "pace": scored.pace and asdict(scored.pace),
        "scoring": scored.scoring and asdict(scored.scoring),
        "sources": [{"reward": score.reward, "weight": score.weight} for score in scored.scores],
    }
    rows = [
        {
            "ticket": scored.ticket,
            "rollout_index": index,
            "reward": None if math.isnan(reward) else reward,
            "num_prompt_tokens": scored.num_prompt_tokens[index],
            "num_completion_tokens": scored.num_completion_tokens[index],
            "num_forwarded_tokens": scored.num_forwarded_tokens[index],
            "terminated": scored.terminated[index],
            "duplicate": scored.duplicates[index],
            "num_turns": scored.num_turns[index],
            "num_sequences": scored.num_sequences[index],
            "duration_seconds": scored.duration_seconds[index],
            "drift_tokens": scored.drift_tokens[index] if scored.drift_tokens else [],
            "tool_calls": [asdict(call) for call in scored.tool_calls[index]] if scored.tool_calls else [],
            "loop_exhausted": scored.loop_exhausted[index] if scored.loop_exhausted else False,
            "scores": [
                {
                    "reward": score.reward,
                    "weight": score.weight,
                    "value": score.values[index],
                    "error": score.errors[index],
                    "duration_seconds": score.duration_seconds,
                }
                for score in scored.scores
            ],
        }
        for index, reward in enumerate(scored.rewards)
    ]
    return _write(rows, SCORED_SCHEMA, "scored", facts)


def scored_from_arrow(data: pa.Buffer | bytes, where: str | None = None) -> ScoredGroup:
    """The scores in an IPC file. Raises `RecordError`."""
    table, facts = _read(data, SCORED_SCHEMA, "scored", where)
    rows = table.to_pylist()
    sources, scoring = facts.pop("sources"), facts.pop("scoring", None)
    return ScoredGroup(
        rewards=[math.nan if row["reward"] is None else row["reward"] for row in rows],
        scores=[_score_from_arrow(place, source, rows) for place, source in enumerate(sources)],
        marks=frozenset(Mark(mark) for mark in facts.pop("marks")),
        num_prompt_tokens=[row["num_prompt_tokens"] for row in rows],
        num_completion_tokens=[row["num_completion_tokens"] for row in rows],
        num_forwarded_tokens=[row["num_forwarded_tokens"] for row in rows],
        terminated=[bool(row["terminated"]) for row in rows],
        duplicates=[row["duplicate"] for row in rows],
        num_turns=[row["num_turns"] or 0 for row in rows],
        num_sequences=[row["num_sequences"] or 0 for row in rows],
        duration_seconds=[row["duration_seconds"] or 0.0 for row in rows],
        drift_tokens=[row["drift_tokens"] or [] for row in rows],
        tool_calls=[_tool_calls(row) for row in rows],
        loop_exhausted=[bool(row["loop_exhausted"]) for row in rows],
        pace=_pace(facts.pop("pace", None)),
        scoring=scoring and Scoring(**_known(scoring, Scoring)),
        **facts,
    )


def read_table(
    data: pa.Buffer | bytes, schema: pa.Schema, name: str, where: str | None = None
) -> tuple[pa.Table, dict[str, Any]]:
    """The columns of `schema` (missing ones null, unknown ones left out) and the group's facts. Raises `RecordError`."""
    return _read(data, schema, name, where)


def write_table(rows: list[dict[str, Any]], schema: pa.Schema, name: str, facts: dict[str, Any]) -> pa.Buffer:
    """Rows of `schema` and the group's facts as an IPC file that `read_table` reads."""
    return _write(rows, schema, name, facts)


def _pace(document: dict[str, Any] | None) -> Pace | None:
    return None if document is None else Pace(**_known(document, Pace))


def _known(document: dict[str, Any], record: type[Any]) -> dict[str, Any]:
    """What a record of this version has; a newer one may hold more."""
    return {field.name: document[field.name] for field in fields(record) if field.name in document}


def _turn_to_arrow(turn: TurnRecord) -> dict[str, Any]:
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
    }


def _lists_of(top: Sequence[dict[int, float]] | None) -> tuple[list[list[int]] | None, list[list[float]] | None]:
    if top is None:
        return None, None
    if isinstance(top, TopTokens):
        return top.lists()
    return [list(place) for place in top], [list(place.values()) for place in top]


def _rollout_from_arrow(row: dict[str, Any], turns: list[TurnRecord]) -> Rollout:
    return Rollout(
        completion=json.loads(row["completion"]),
        completion_ids=row["completion_ids"],
        turns=turns,
        tool_call_count=row["tool_call_count"],
        tool_failure_count=row["tool_failure_count"],
        reward=row["reward"],
        rollout_id=row["rollout_id"],
        index=row["rollout_index"],
        seed=row["seed"],
        stop_reason=StopReason(row["stop_reason"]),
        error=row["error"],
        duration_seconds=row["duration_seconds"],
        tool_calls=_tool_calls(row),
    )


def _tool_calls(row: dict[str, Any]) -> list[ToolCall]:
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


def _turns_from_arrow(column: pa.ChunkedArray) -> Iterator[list[TurnRecord]]:
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
    )


def _score_from_arrow(place: int, source: dict[str, Any], rows: list[dict[str, Any]]) -> Score:
    entries = [row["scores"][place] for row in rows]
    return Score(
        reward=source["reward"],
        weight=source["weight"],
        values=[entry["value"] for entry in entries],
        errors=[entry["error"] for entry in entries],
        duration_seconds=entries[0]["duration_seconds"] if entries else 0.0,
    )


def _write(rows: list[dict[str, Any]], schema: pa.Schema, name: str, facts: dict[str, Any]) -> pa.Buffer:
    metadata = {
        "agrpo.schema": name,
        "agrpo.schema_version": VERSION,
        "agrpo.facts": json.dumps(facts, ensure_ascii=False, default=str),
        ARROW_KEY: UNSEALED,
    }
    schema = schema.with_metadata(metadata)
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    return sealed_arrow(sink.getvalue())


def _read(data: pa.Buffer | bytes, schema: pa.Schema, name: str, where: str | None) -> tuple[pa.Table, dict[str, Any]]:
    where = where or f"a {name} record"
    check_arrow(data, where)
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{where} is not a whole {name} record: {error}; the file is damaged or not agrpo's. Bring it back from a copy"
        ) from None
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    found, version = metadata.get("agrpo.schema"), metadata.get("agrpo.schema_version", "")
    if found != name:
        raise RecordError(f"{where}: expected a {name} record, found {found or 'no agrpo schema'}")
    if int(version.partition(".")[0]) > MAJOR:
        raise RecordTooNew(
            f"{where} is a {name} record of schema version {version}; this agrpo reads up to {MAJOR}.x: upgrade agrpo"
        )
    facts = json.loads(metadata["agrpo.facts"])
    if table.schema.equals(schema):  # metadata does not count
        return table.replace_schema_metadata(None), facts
    columns = [
        table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema.remove_metadata()), facts
