"""Slots as rows: generated groups, and their scores. Token lists pass from Arrow to Arrow without a copy.

What slots hold is kept as it is until their batch is written, and then turned into rows for all of them at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from agrpo.database.batch import Batch
from agrpo.database.schema import table_schemas
from agrpo.database.values import as_json, timestamp
from agrpo.records.arrow import GROUP_SCHEMA, SCORED_SCHEMA, read_table
from agrpo.records.prompt import Message
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sample import drift_of, sequences_of

_TOPK = ("output_sampling_mask", "top_ids", "top_logprobs")
"""Most of a turn's bytes, where the run keeps them."""
_RENAMED = ("turns", "reward", "prompt", "stay", "columns")
"""Columns of a slot whose rows of `rollouts` have them under other names, or counted."""
_SAMPLED_BY = ("model_attempt", "model_step", "model_ordinal")
"""Of the version that sampled a group; slots of older runs do not have them."""


def add_group(batch: Batch, data: pa.Buffer, *, topk: bool) -> None:
    """The rows of a slot of `groups`. Raises `RecordError`."""
    table, facts = read_table(data, GROUP_SCHEMA, "group")
    prompt = facts["prompt"]
    batch.add_rows(
        "groups",
        [
            {
                **{
                    name: facts[name]
                    for name in ("ticket", "model_version", "base", "claim_try", "generator", "refusal")
                },
                **{name: facts.get(name) for name in _SAMPLED_BY},
                **{name: prompt[name] for name in ("environment", "epoch", "row_index")},
                "prompt_id": prompt["id"],
                "prompt": as_json(prompt["messages"]),
                "facts": as_json(prompt["facts"]),
                "claimed_at": timestamp(facts["claimed_at"]),
                "finished_at": timestamp(facts["finished_at"]),
                "num_rollouts": len(table),
                "slot_bytes": data.size,
                **(facts.get("pace") or {}),
            }
        ],
    )
    batch.add_slot(table, data.size, _groups_with_topk if topk else _groups)


def add_scores(batch: Batch, data: pa.Buffer) -> None:
    """The rows of a slot of `scored`. Raises `RecordError`."""
    table, facts = read_table(data, SCORED_SCHEMA, "scored")
    scoring = facts.get("scoring") or {}
    batch.add_rows(
        "scored_groups",
        [
            {
                **{name: facts[name] for name in ("ticket", "prompt_id", "model_version", "marks", "refusal")},
                **{name: facts.get(name) for name in ("base", "left_out_by", *_SAMPLED_BY)},
                "generated_at": timestamp(facts["generated_at"]),
                "scored_at": timestamp(facts["scored_at"]),
                "score_seconds": scoring.get("seconds"),
                "score_wait_seconds": scoring.get("wait_seconds"),
                "score_queue_size": scoring.get("queue_size"),
            }
        ],
    )
    batch.add_rows(
        "reward_metrics",
        [
            {"ticket": facts["ticket"], "reward": source["reward"], "name": name, "value": value}
            for source in facts["sources"]
            for name, value in source.get("metrics", {}).items()
        ],
    )
    batch.add_slot(table, data.size, _scores)


def _groups(slots: pa.Table) -> Mapping[str, pa.Table]:
    found = _groups_with_topk(slots)
    return {**found, "turns": found["turns"].drop_columns(list(_TOPK))}


def _groups_with_topk(slots: pa.Table) -> Mapping[str, pa.Table]:
    turns = _exploded(slots, "turns", "turn_index")
    drifts = pa.array(_drifts(turns, _lengths(slots.column("turns"))), pa.int32())
    return {
        "turns": turns.append_column("drift_tokens", drifts),
        "rollouts": _rollouts(slots, turns),
        "tool_calls": _exploded(slots, "tool_calls", "call_index"),
    }


def _scores(slots: pa.Table) -> Mapping[str, pa.Table]:
    rewards = _exploded(slots, "scores", "place").drop_columns(["place"]).rename_columns({"reward": "name"})
    return {
        "scores": slots.select(["ticket", "rollout_index", "reward", "duplicate"]),
        "rewards": rewards,
        "reward_extras": _extras(slots),
    }


def _extras(slots: pa.Table) -> pa.Table:
    """Texts without the quotes that they have in JSON."""
    rows = _exploded(slots, "extras", "place").drop_columns(["place"])
    values = [json.loads(v) if v is not None and v[:1] == '"' else v for v in rows.column("value").to_pylist()]
    return rows.set_column(rows.column_names.index("value"), "value", pa.array(values, pa.string()))


def _exploded(slots: pa.Table, column: str, numbered: str) -> pa.Table:
    """One row for each entry of a column of lists of structs, with its rollout and its number in the list."""
    lists = slots.column(column).combine_chunks()
    counts = _lengths(slots.column(column))
    parents = np.repeat(np.arange(len(slots)), counts)
    flat = lists.flatten()
    return pa.table(
        {
            "ticket": slots.column("ticket").take(parents),
            "rollout_index": slots.column("rollout_index").take(parents),
            numbered: np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts),
            **dict(zip([field.name for field in flat.type], flat.flatten(), strict=True)),
        }
    )


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    """Length of every list of a column."""
    return np.diff(lists.combine_chunks().offsets.to_numpy())


def _rollouts(slots: pa.Table, turns: pa.Table) -> pa.Table:
    counts = _lengths(slots.column("turns"))
    columns: dict[str, Any] = {
        **{name: slots.column(name) for name in slots.column_names if name not in _RENAMED},
        "own_reward": slots.column("reward"),
        "own_prompt": slots.column("prompt"),
        "own_columns": slots.column("columns"),
        **_of_stays(slots.column("stay")),
        "completion_text": [_text(json.loads(text)) for text in slots.column("completion").to_pylist()],
        "num_completion_tokens": _lengths(slots.column("completion_ids")),
        "num_turns": counts,
        **_facts_of_turns(turns, counts),
    }
    schema = [field for field in table_schemas()["rollouts"] if field.name != "completion_ids"]
    arrays = {field.name: _as(columns[field.name], field.type) for field in schema}
    return pa.table({**arrays, "completion_ids": columns["completion_ids"]})


def _of_stays(stays: pa.ChunkedArray) -> dict[str, pa.Array]:
    """In environments: NULL where a rollout had none."""
    environment, reset_seconds, reward_seconds, *_ = stays.combine_chunks().flatten()
    return {
        "environment_class": environment,
        "reset_seconds": reset_seconds,
        "get_reward_seconds": reward_seconds,
    }


def _as(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    return values.cast(kind) if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, kind)


def _facts_of_turns(turns: pa.Table, counts: np.ndarray) -> dict[str, list[Any]]:
    """What the turns of each rollout say of it; `counts`: how many turns each has."""
    prompts, outputs = (_lengths(turns.column(name)).tolist() for name in ("prompt_ids", "output_ids"))
    reasons, versions = turns.column("stop_reason").to_pylist(), _first_versions(turns)
    masked = turns.column("output_mask").is_valid().to_pylist()
    found: dict[str, list[Any]] = {name: [] for name in _OF_TURNS}
    first = 0
    for count in counts.tolist():
        last = first + count
        if count == 1 and not masked[first]:
            forwarded, sequences = prompts[first] + outputs[first], int(prompts[first] > 0 and outputs[first] > 0)
        else:
            forwarded, sequences = _counted(turns.slice(first, count))
        known = [version for version in versions[first:last] if version is not None]
        values = (
            count > 0 and reasons[last - 1] == StopReason.STOP,
            prompts[first] if count else 0,
            forwarded,
            sequences,
            known[0] if known else None,
        )
        for name, value in zip(_OF_TURNS, values, strict=True):
            found[name].append(value)
        first = last
    return found


_OF_TURNS = ("terminated", "num_prompt_tokens", "num_forwarded_tokens", "num_sequences", "model_version")


def _first_versions(turns: pa.Table) -> list[int | None]:
    """The version of each turn's first token; None where it has none."""
    lists = turns.column("output_versions").combine_chunks()
    starts = lists.offsets.to_numpy()[:-1]
    sampled = _lengths(turns.column("output_versions")) > 0
    # Beyond the last value where the last turns have none: those are masked.
    places = pa.array(np.where(sampled, starts, 0), mask=~sampled)
    return lists.values.take(places).to_pylist()


def _drifts(turns: pa.Table, counts: np.ndarray) -> Iterator[int | None]:
    """What the prompt of each turn left of the tokens before it; None for first turns."""
    first = 0
    for count in counts.tolist():
        if count:
            yield None
        if count > 1:
            yield from drift_of(_rollout_of(turns.slice(first, count)))
        first += count


def _counted(turns: pa.Table) -> tuple[int, int]:
    """Tokens forwarded for a rollout of several turns, and the training sequences they make up."""
    sequences = sequences_of(_rollout_of(turns))
    return sum(len(own.tokens) for own in sequences), sum(own.num_trained > 0 for own in sequences)


def _rollout_of(turns: pa.Table) -> Rollout:
    kept = turns.select(["prompt_ids", "output_ids", "output_log_probs", "output_mask"])
    return Rollout(completion=[], completion_ids=[], turns=[TurnRecord(**row) for row in kept.to_pylist()])


def _text(messages: list[Message]) -> str:
    """The contents of the policy's own messages. A content is a string, or a list of parts of which some are text."""
    texts: list[str] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant" and content:
            parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            texts.append("".join(parts))
    return "\n".join(texts)
