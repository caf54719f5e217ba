"""Groups and scores as Arrow: one record batch holds one group, one row per rollout, in the IPC file format.

The group's own facts are in the schema's metadata, so a group without rollouts (a refused prompt) is a record too.
Readers ignore columns they do not know, fill those that are missing, refuse a higher major schema version, and check
the file's checksum before they read it. `where` is what errors call the file.

Whatever text users' functions gave, the file is written: half a surrogate pair is a question mark in it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

import pyarrow as pa

from agrpo.errors import RecordError, RecordTooNew
from agrpo.records.checksum import ARROW_KEY, UNSEALED, check_arrow, sealed_arrow
from agrpo.records.extras import EXTRA, extras_from_arrow, extras_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.nested import (
    IDS,
    STAY,
    TOOL_CALL,
    TURN,
    null_throughout,
    stay_of,
    stay_to_arrow,
    tool_calls_of,
    turn_to_arrow,
    turns_from_arrow,
)
from agrpo.records.pace import Pace
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.score import Mark, Score, ScoredGroup, Scoring
from agrpo.records.text import writable, writable_throughout

MAJOR = 1
VERSION = f"{MAJOR}.0"

GROUP_SCHEMA = pa.schema(
    [
        ("ticket", pa.int64()),
        ("rollout_index", pa.int16()),
        ("rollout_id", pa.string()),
        ("seed", pa.int64()),
        ("stop_reason", pa.string()),
        ("error", pa.string()),
        ("completion", pa.string()),
        ("completion_ids", IDS),
        ("turns", pa.list_(TURN)),
        ("tool_call_count", pa.int32()),
        ("tool_failure_count", pa.int32()),
        ("reward", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("tool_calls", pa.list_(TOOL_CALL)),
        ("prompt", pa.string()),
        ("stay", STAY),
        ("columns", pa.string()),
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
        ("truncated", pa.bool_()),
        ("duplicate", pa.bool_()),
        ("num_turns", pa.int32()),
        ("num_sequences", pa.int32()),
        ("duration_seconds", pa.float64()),
        ("drift_tokens", IDS),
        ("tool_calls", pa.list_(TOOL_CALL)),
        ("loop_exhausted", pa.bool_()),
        ("extras", pa.list_(EXTRA)),
        ("stay", STAY),
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
            "turns": [turn_to_arrow(turn) for turn in rollout.turns],
            "tool_call_count": rollout.tool_call_count,
            "tool_failure_count": rollout.tool_failure_count,
            "reward": rollout.reward,
            "duration_seconds": rollout.duration_seconds,
            "tool_calls": [asdict(call) for call in rollout.tool_calls],
            "prompt": None if rollout.prompt is None else json.dumps(rollout.prompt, ensure_ascii=False),
            "stay": stay_to_arrow(rollout.stay),
            "columns": json.dumps(rollout.columns, ensure_ascii=False) if rollout.columns else None,
        }
        for rollout in group.rollouts
    ]
    return _write(rows, GROUP_SCHEMA, "group", facts)


def group_from_arrow(data: pa.Buffer | bytes, where: str | None = None) -> RolloutGroup:
    """The group in an IPC file. Raises `RecordError`."""
    table, facts = _read(data, GROUP_SCHEMA, "group", where)
    prompt = Prompt(**facts.pop("prompt"))
    pace = _pace(facts.pop("pace", None))
    rows, turns = table.drop_columns(["turns"]).to_pylist(), turns_from_arrow(table.column("turns"))
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
        "left_out_by": scored.left_out_by,
        "generated_at": scored.generated_at,
        "scored_at": scored.scored_at,
        "pace": scored.pace and asdict(scored.pace),
        "scoring": scored.scoring and asdict(scored.scoring),
        "sources": [
            {"reward": score.reward, "weight": score.weight, "metrics": score.metrics} for score in scored.scores
        ],
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
            "truncated": scored.truncated[index] if scored.truncated else False,
            "duplicate": scored.duplicates[index],
            "num_turns": scored.num_turns[index],
            "num_sequences": scored.num_sequences[index],
            "duration_seconds": scored.duration_seconds[index],
            "drift_tokens": scored.drift_tokens[index] if scored.drift_tokens else [],
            "tool_calls": [asdict(call) for call in scored.tool_calls[index]] if scored.tool_calls else [],
            "loop_exhausted": scored.loop_exhausted[index] if scored.loop_exhausted else False,
            "extras": extras_to_arrow(scored.scores, index),
            "stay": stay_to_arrow(scored.stays[index] if scored.stays else None),
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
        truncated=[bool(row["truncated"]) for row in rows],
        duplicates=[row["duplicate"] for row in rows],
        num_turns=[row["num_turns"] or 0 for row in rows],
        num_sequences=[row["num_sequences"] or 0 for row in rows],
        duration_seconds=[row["duration_seconds"] or 0.0 for row in rows],
        drift_tokens=[row["drift_tokens"] or [] for row in rows],
        tool_calls=[tool_calls_of(row) for row in rows],
        loop_exhausted=[bool(row["loop_exhausted"]) for row in rows],
        stays=[stay_of(row) for row in rows],
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
        tool_calls=tool_calls_of(row),
        prompt=None if row["prompt"] is None else json.loads(row["prompt"]),
        stay=stay_of(row),
        columns=json.loads(row["columns"]) if row["columns"] else {},
    )


def _score_from_arrow(place: int, source: dict[str, Any], rows: list[dict[str, Any]]) -> Score:
    entries = [row["scores"][place] for row in rows]
    return Score(
        reward=source["reward"],
        weight=source["weight"],
        values=[entry["value"] for entry in entries],
        errors=[entry["error"] for entry in entries],
        duration_seconds=entries[0]["duration_seconds"] if entries else 0.0,
        extras=extras_from_arrow(source["reward"], rows),
        metrics=source.get("metrics", {}),
    )


def _write(rows: list[dict[str, Any]], schema: pa.Schema, name: str, facts: dict[str, Any]) -> pa.Buffer:
    metadata = {
        "agrpo.schema": name,
        "agrpo.schema_version": VERSION,
        "agrpo.facts": writable(json.dumps(facts, ensure_ascii=False, default=str)),
        ARROW_KEY: UNSEALED,
    }
    schema = schema.with_metadata(metadata)
    try:
        plain = pa.RecordBatch.from_pylist(rows, schema=schema)
    except UnicodeEncodeError:
        plain = pa.RecordBatch.from_pylist(writable_throughout(rows), schema=schema)
    batch = pa.RecordBatch.from_arrays([null_throughout(column) for column in plain.columns], schema=schema)
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
