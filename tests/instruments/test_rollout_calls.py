"""A rollout that called tools, as it is read: each call under its turn, with what came back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.instruments.rollout_page.completion import seconds
from agrpo.instruments.rollout_page.document import page_document
from agrpo.instruments.rollout_page.pieces import NoPieces, pieces_of
from agrpo.queue.run_folder import RunFolder
from agrpo.records.rollout import CallFailure, Rollout, StopReason, ToolCall
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, a_turn, add_attempt, add_group, new_run
from tests.instruments.test_rollout_page import part_of, read, shown
from tests.stages.playing import Stage, call_of, script

DOCUMENTED = (Path(__file__).parents[2] / "docs" / "tools.md").read_text("utf-8")


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


def timed() -> Rollout:
    """Each turn took a second longer than the one before; one call failed as it ran, one was not begun."""
    talk = conversation()
    turns = [
        replace(turn, begun_seconds=12.5 * number, duration_seconds=number + 0.25)
        for number, turn in enumerate(talk.turns)
    ]
    late = ToolCall(turn_index=0, name="add", duration_seconds=2.0, failure=CallFailure.TIMEOUT, reason="Error: late")
    return replace(talk, turns=turns, tool_calls=[late, talk.tool_calls[1]], tool_failure_count=2)


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
    add_group(folder, 2, [timed(), a_rollout(1, [4, 1])])
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


@pytest.mark.parametrize("as_table", [False, True])
def test_each_turn_is_told_with_its_tokens_and_its_seconds(folder: RunFolder, as_table: bool):
    lines = part_of(shown(read(folder, 2), as_table=as_table), "completion", "rewards")
    assert [line for line in lines if line.startswith(("turn ", "→"))] == [
        "turn 0 · 2 prompt + 2 tokens · 0.25 s at +0.00 s · stop · training sequence 0",
        '→ add({"a": 4, "b": 5}) · timeout after 2 s · 9',
        "turn 1 · 5 prompt + 2 tokens · 1.25 s at +12.50 s · stop · training sequence 0",
        "→ a call · malformed · Error: no JSON",
        "turn 2 · 8 prompt + 2 tokens · 2.25 s at +25.00 s · stop · training sequence 0",
    ]
    timeless = part_of(shown(read(folder, 0), as_table=as_table), "completion", "rewards")
    assert "turn 0 · 2 prompt + 2 tokens · stop · training sequence 0" in timeless


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "0 s"), (3.4e-5, "<0.001 s"), (0.0421, "0.0421 s"), (99.46, "99.5 s"), (1234.5, "1234 s")]
)
def test_seconds_are_told_without_powers_of_ten(value: float, told: str):
    assert seconds(value) == told


def test_the_page_of_the_documents_is_what_is_printed(tiny_model: Path, tmp_path: Path):
    """Played, with times of our own."""
    said = (call_of("add", a=4, b=5), call_of("divide", a=9, b=0), "The sum is 9.")
    (rollout,) = Stage(tiny_model, "add", "divide").play(script(*said))
    times = zip(rollout.turns, (0.02, 0.71, 1.38), (0.43, 0.39, 0.22), strict=True)
    turns = [replace(turn, begun_seconds=begun, duration_seconds=took) for turn, begun, took in times]
    calls = [replace(call, duration_seconds=took) for call, took in zip(rollout.tool_calls, (0.25, 0.27), strict=True)]
    folder = new_run(tmp_path / "run", tools=["my:add"])
    add_group(folder, 0, [replace(rollout, turns=turns, tool_calls=calls)])
    record_once(folder, Database(folder.database))
    pieces = pieces_of({"settings": {"tree": {"model": {"path": str(tiny_model)}}}}, tmp_path)
    lines = part_of(shown(read(folder, 0, pieces=pieces)), "completion", "rewards")
    assert "```text\n" + "\n".join(lines[: lines.index("")]) + "\n```" in DOCUMENTED


def test_the_query_of_the_documents_tells_sampling_from_calling(folder: RunFolder):
    (sql,) = re.findall(r"-- Where does the time (?:.|\n)*?;", DOCUMENTED)
    rows = {(row["ticket"], row["rollout_index"]): row for row in query(folder.database, sql).to_pylist()}
    assert (rows[2, 0]["sampling_seconds"], rows[2, 0]["tool_seconds"]) == (3.75, 2.0)
    assert (rows[2, 1]["sampling_seconds"], rows[2, 1]["tool_seconds"]) == (None, None)


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


def test_programs_are_told_of_calls_with_arguments_and_results_and_of_the_times_of_turns(folder: RunFolder):
    calls = json.loads(page_document(read(folder, 0)))["calls"]
    assert [(call["name"], call["arguments"], call["result"]) for call in calls] == [
        ("add", '{"a": 4, "b": 5}', "9"),
        ("", None, "Error: no JSON"),
    ]
    turns = json.loads(page_document(read(folder, 2)))["turns"]
    assert [(turn["begun_seconds"], turn["duration_seconds"]) for turn in turns] == [
        (0, 0.25),
        (12.5, 1.25),
        (25, 2.25),
    ]
