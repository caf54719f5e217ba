"""A rollout that called tools, as it is read: each call under its turn, with what came back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.database.writer import Database
from agrpo.instruments.rollout_page.document import page_document
from agrpo.instruments.rollout_page.pieces import NoPieces
from agrpo.queue.run_folder import RunFolder
from agrpo.records.rollout import CallFailure, Rollout, StopReason, ToolCall
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, a_turn, add_attempt, add_group, new_run
from tests.instruments.test_rollout_page import part_of, read, shown


def conversation() -> Rollout:
    arguments = {"a": 4, "b": 5}
    called = [{"id": "call00000", "type": "function", "function": {"name": "add", "arguments": arguments}}]
    messages = [
        {"role": "assistant", "content": "four", "tool_calls": called},
        {"role": "tool", "content": "9", "tool_call_id": "call00000", "name": "add"},
        {"role": "assistant", "content": "<tool_call>six"},
        {"role": "tool", "content": "Error: no JSON", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "five"},
    ]
    turns = [a_turn([7, 8], [4, 1]), a_turn([7, 8, 4, 1, 9], [6, 1]), a_turn([7, 8, 4, 1, 9, 6, 1, 8], [5, 1])]
    calls = [
        ToolCall(turn_index=0, name="add", duration_seconds=0.25),
        ToolCall(turn_index=1, name="", failure=CallFailure.MALFORMED, reason="Error: no JSON"),
    ]
    ids = [token for turn in turns for token in turn.output_ids]
    return replace(
        a_rollout(0, ids), turns=turns, completion=messages, tool_calls=calls, tool_call_count=2, tool_failure_count=1
    )


def broken_off() -> Rollout:
    """Its third turn was not answered."""
    calls = [
        ToolCall(turn_index=0, name="add", duration_seconds=0.25),
        ToolCall(turn_index=1, name="sub", failure=CallFailure.RAISED, reason="Error: no"),
    ]
    failed = replace(
        a_rollout(0, []), turns=[], completion=[], stop_reason=StopReason.TIMEOUT, error="turn 2: too slow"
    )
    return replace(failed, tool_calls=calls, tool_call_count=2, tool_failure_count=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = new_run(tmp_path_factory.mktemp("calls") / "run", tools=["my:add"])
    add_attempt(folder, 0)
    add_group(folder, 0, [conversation(), a_rollout(1, [4, 1])])
    add_group(folder, 1, [broken_off(), a_rollout(1, [4, 1])])
    record_once(folder, Database(folder.database))
    return folder


def test_each_call_stands_under_the_turn_that_made_it(folder: RunFolder):
    lines = part_of(shown(read(folder, 0)), "completion", "rewards")
    first, second, third = (
        next(at for at, line in enumerate(lines) if line.startswith(f"turn {n} ·")) for n in range(3)
    )
    assert '→ add({"a": 4, "b": 5}) · 0.25 s · 9' in lines[first:second]
    assert "→ a call · malformed · Error: no JSON" in lines[second:third]
    assert sum(line.startswith("→") for line in lines) == 2
    assert "6 generated tokens + 2 between turns" in shown(read(folder, 0))
    assert "2 tool calls, 1 failed" in shown(read(folder, 0))


@pytest.mark.parametrize("as_table", [False, True])
def test_calls_of_a_rollout_that_failed_are_listed_though_its_turns_are_gone(folder: RunFolder, as_table: bool):
    lines = part_of(shown(read(folder, 1), as_table=as_table), "completion", "rewards")
    assert lines[0] == "turn 2: too slow"
    assert lines[-2:] == ["turn 0 → add · 0.25 s", "turn 1 → sub · raised · Error: no"]


def test_the_group_tells_how_many_turns_and_calls_each_rollout_took(folder: RunFolder):
    lines = [line.split() for line in shown(read(folder, 0)).splitlines()]
    head = next(at for at, line in enumerate(lines) if line[:1] == ["#"])
    assert lines[head] == ["#", "reward", "advantage", "tokens", "turns", "calls", "stop", "completion"]
    assert lines[head + 1][:8] == ["›", "0", "6", "3", "2", "(1", "failed)", "stop"]
    assert lines[head + 2][:5] == ["1", "2", "1", "0", "stop"]


def test_without_a_tokenizer_it_is_a_conversation(folder: RunFolder, tmp_path: Path):
    lines = part_of(shown(read(folder, 0, pieces=NoPieces("the tokenizer is gone"))), "completion", "rewards")
    said = [line.partition("  ") for line in lines if line.startswith(("assistant  ", "tool  "))]
    assert [(role, text.strip()) for role, _, text in said] == [
        ("assistant", "four"),
        ("tool", "9"),
        ("assistant", "<tool_call>six"),
        ("tool", "Error: no JSON"),
        ("assistant", "five"),
    ]


def test_programs_are_told_of_calls_with_arguments_and_results(folder: RunFolder):
    calls = json.loads(page_document(read(folder, 0)))["calls"]
    assert [(call["name"], call["arguments"], call["result"]) for call in calls] == [
        ("add", '{"a": 4, "b": 5}', "9"),
        ("", None, "Error: no JSON"),
    ]
