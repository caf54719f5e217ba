"""Runs whose engine is vllm, over servers of tests/vllm_like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agrpo.config import resolve
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.arrow import group_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Done, Event
from agrpo.runs import prepare
from tests.stages.walk import settings
from tests.vllm_like import Server

ENGINE: dict[str, Any] = {
    "name": "vllm",
    "num_generations": 4,
    "max_completion_length": 6,
    "request_timeout_seconds": 10.0,
    "start_seconds": 10.0,
    "outage_seconds": 20.0,
    "load_seconds": 5.0,
}


def begin(servers: Sequence[Server], place: Path, *, engine: dict[str, Any] | None = None, **tables: Any) -> RunFolder:
    """A run over these servers: steps of two groups of four rollouts, each of up to six tokens."""
    place.mkdir(exist_ok=True)
    prompts = place / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{first}+{first + 2} ="}]} for first in range(12)]
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    tree = settings(servers[0].model, prompts, place, **tables)
    tree["engine"] = {**ENGINE, "base_urls": [server.url for server in servers], **(engine or {})}
    return prepare(resolve(values=tree))


def groups_of(folder: RunFolder) -> list[RolloutGroup]:
    """All that were sampled, in the order of their tickets."""
    return [group_from_arrow(folder.groups.read(ticket)) for ticket in sorted(folder.groups.numbers())]


def all_dones(folder: RunFolder) -> list[Done]:
    """Of all attempts, in order."""
    keys = [StepKey(attempt, step) for attempt in folder.attempts() for step in folder.done_steps(attempt)]
    return [done for key in keys if (done := folder.done(key)) is not None]


def events_of(folder: RunFolder, kind: str) -> list[Event]:
    told = [
        folder.event(stream, number) for stream in folder.event_streams() for number in folder.event_numbers(stream)
    ]
    return [event for event in told if event is not None and event.kind == kind]


def largest_difference(folder: RunFolder) -> float:
    """Of the learner's log-prob of a trained token from the one that the server reported for it, at staleness 0."""
    from agrpo.records.trained_tokens import tokens_table

    groups = {group.ticket: group for group in groups_of(folder)}
    found = 0.0
    for done in all_dones(folder):
        for sample in tokens_table(folder.tokens(StepKey(done.attempt, done.step))).to_pylist():
            (turn,) = groups[sample["ticket"]].rollouts[sample["rollout_index"]].turns
            told = zip(sample["log_probs"], turn.output_log_probs, turn.output_versions, strict=True)
            fresh = [abs(learned - sampled) for learned, sampled, version in told if version == done.step - 1]
            found = max([found, *fresh])
    return found
