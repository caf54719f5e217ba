"""Slots as rows: a generated group, and its scores. Token lists pass from Arrow to Arrow without a copy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from agrpo.database.batch import Batch, Row
from agrpo.database.schema import table_schemas
from agrpo.database.values import as_json, timestamp
from agrpo.records.arrow import GROUP_SCHEMA, SCORED_SCHEMA, read_table
from agrpo.records.prompt import Message
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sample import sequences_of

_TOPK = ("output_sampling_mask", "top_ids", "top_logprobs")
"""Most of a turn's bytes, where the run keeps them."""


def add_group(batch: Batch, data: pa.Buffer, *, topk: bool) -> None:
    """The rows of a slot of `groups`. Raises `RecordError`."""
    table, facts = read_table(data, GROUP_SCHEMA, "group")
    turns = _turns(table)
    prompt = facts["prompt"]
    batch.add_rows(
        "groups",
        [
            {
                **{
                    name: facts[name]
                    for name in ("ticket", "model_version", "base", "claim_try", "generator", "refusal")
                },
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
    batch.add_table("turns", turns if topk else turns.drop_columns(list(_TOPK)))
    batch.add_table("rollouts", _rollouts(table, turns))


def add_scores(batch: Batch, data: pa.Buffer) -> None:
    """The rows of a slot of `scored`. Raises `RecordError`."""
    table, facts = read_table(data, SCORED_SCHEMA, "scored")
    rows, scoring = table.to_pylist(), facts.get("scoring") or {}
    batch.add_rows(
        "scored_groups",
        [
            {
                **{name: facts[name] for name in ("ticket", "prompt_id", "model_version", "marks", "refusal")},
                "generated_at": timestamp(facts["generated_at"]),
                "scored_at": timestamp(facts["scored_at"]),
                "score_seconds": scoring.get("seconds"),
                "score_wait_seconds": scoring.get("wait_seconds"),
                "score_queue_size": scoring.get("queue_size"),
            }
        ],
    )
    own = ("ticket", "rollout_index", "reward", "duplicate")
    batch.add_rows("scores", [{name: row[name] for name in own} for row in rows])
    batch.add_rows("rewards", [_reward(row, score) for row in rows for score in row["scores"]])


def _reward(row: dict[str, Any], score: dict[str, Any]) -> Row:
    return {
        "ticket": row["ticket"],
        "rollout_index": row["rollout_index"],
        "name": score["reward"],
        **{name: score[name] for name in ("weight", "value", "error", "duration_seconds")},
    }


def _turns(table: pa.Table) -> pa.Table:
    """The turns of all rollouts, one under the other."""
    lists = table.column("turns").combine_chunks()
    counts = _lengths(table.column("turns"))
    parents = np.repeat(np.arange(len(table)), counts)
    flat = lists.flatten()
    return pa.table(
        {
            "ticket": table.column("ticket").take(parents),
            "rollout_index": table.column("rollout_index").take(parents),
            "turn_index": np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts),
            **dict(zip([field.name for field in flat.type], flat.flatten(), strict=True)),
        }
    )


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    """Length of every list of a column."""
    return np.diff(lists.combine_chunks().offsets.to_numpy())


def _rollouts(table: pa.Table, turns: pa.Table) -> pa.Table:
    kept = ["ticket", "rollout_index", "rollout_id", "seed", "stop_reason", "error", "completion", "duration_seconds"]
    counts = _lengths(table.column("turns")).tolist()
    lengths = _lengths(table.column("completion_ids")).tolist()
    rows: list[Row] = []
    first = 0
    for place, row in enumerate(table.select([*kept, "tool_call_count", "tool_failure_count", "reward"]).to_pylist()):
        row["own_reward"] = row.pop("reward")
        row["completion_text"] = _text(json.loads(row["completion"]))
        row["num_completion_tokens"] = lengths[place]
        rows.append(row | _facts_of_turns(turns.slice(first, counts[place])))
        first += counts[place]
    schema = table_schemas()["rollouts"]
    built = pa.Table.from_pylist(rows, schema.remove(schema.get_field_index("completion_ids")))
    return built.append_column("completion_ids", table.column("completion_ids"))


def _facts_of_turns(turns: pa.Table) -> Row:
    """What the turns of one rollout say of it."""
    prompts = _lengths(turns.column("prompt_ids")).tolist()
    outputs = _lengths(turns.column("output_ids")).tolist()
    reasons = turns.column("stop_reason").to_pylist()
    versions = [version[0].as_py() for version in turns.column("output_versions") if len(version)][:1]
    return {
        "terminated": reasons[-1:] == [StopReason.STOP],
        "num_turns": len(turns),
        "num_prompt_tokens": prompts[0] if prompts else 0,
        **_sequence_facts(turns, prompts, outputs),
        "model_version": versions[0] if versions else None,
    }


def _sequence_facts(turns: pa.Table, prompts: list[int], outputs: list[int]) -> Row:
    """What the training sequences that the turns make up say of the rollout."""
    masks = turns.column("output_mask").to_pylist()
    if len(turns) == 1 and masks[0] is None:
        return {
            "num_forwarded_tokens": prompts[0] + outputs[0],
            "num_sequences": int(prompts[0] > 0 and outputs[0] > 0),
        }
    sequences = sequences_of(_tokens_only(turns))
    return {
        "num_forwarded_tokens": sum(len(sequence.tokens) for sequence in sequences),
        "num_sequences": sum(sequence.num_trained > 0 for sequence in sequences),
    }


def _tokens_only(turns: pa.Table) -> Rollout:
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
