"""Groups and scores survive the way through Arrow exactly; foreign and future bytes are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from agrpo.errors import RecordError
from agrpo.records.arrow import GROUP_SCHEMA, group_from_arrow, group_to_arrow, scored_from_arrow, scored_to_arrow
from agrpo.records.checksum import ARROW_KEY, UNSEALED, sealed_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.nested import TURN as TURN_TYPE
from agrpo.records.pace import Pace
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import CallFailure, Rollout, Stay, StopReason, ToolCall, TurnRecord
from agrpo.records.score import Mark, Score, ScoredGroup, Scoring

TURN = TurnRecord(
    prompt_ids=[3, 4],
    output_ids=[5, 1],
    output_log_probs=[-0.5, -0.25],
    output_mask=[1, 0],
    output_sampling_mask=[[1, 5], [1]],
    output_sampler_logprobs=[{5: -0.5, 7: -1.5}, {1: -0.25}],
    output_versions=[2, 3],
    begun_seconds=0.5,
    duration_seconds=1.25,
)
GROUP = RolloutGroup(
    ticket=3,
    prompt=Prompt(id="a", messages=[{"role": "user", "content": "é?"}], facts={"answer": "4", "parts": [1, 2]}),
    rollouts=[
        Rollout(
            completion=[{"role": "assistant", "content": "é"}],
            completion_ids=[5, 1],
            turns=[TURN],
            seed=2**62,
            tool_call_count=2,
            tool_failure_count=1,
            tool_calls=[
                ToolCall(turn_index=0, name="add", duration_seconds=0.5),
                ToolCall(turn_index=0, name="", failure=CallFailure.MALFORMED, reason="no such tool"),
            ],
        ),
        Rollout(
            completion=[],
            completion_ids=[],
            turns=[],
            index=1,
            stop_reason=StopReason.TIMEOUT,
            error="no answer",
            prompt=[{"role": "user", "content": "Guess."}],
            stay=Stay(environment="Maze", reset_seconds=0.5, reward_seconds=0.25, reward=2.0),
        ),
    ],
    model_version=2,
    generator="generator-x",
    claimed_at=1.5,
)


LENGTHS: dict[str, Any] = {
    "num_prompt_tokens": [2],
    "num_completion_tokens": [2],
    "num_forwarded_tokens": [4],
    "terminated": [True],
    "duplicates": [False],
    "num_turns": [1],
    "num_sequences": [1],
    "duration_seconds": [0.5],
}


def rewritten(data: pa.Buffer, **metadata: str) -> pa.Buffer:
    """The record as another version of agrpo would have written it."""
    table = pa.ipc.open_file(data).read_all()
    found = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    return written(table.replace_schema_metadata({**found, **metadata}))


def before_times(data: pa.Buffer) -> pa.Buffer:
    """A group as it was written before turns had times."""
    table = pa.ipc.open_file(data).read_all()
    timeless = pa.struct([each for each in TURN_TYPE if not each.name.endswith("_seconds")])
    place = table.column_names.index("turns")
    return written(table.set_column(place, "turns", table.column("turns").cast(pa.list_(timeless))))


def written(table: pa.Table) -> pa.Buffer:
    schema = table.schema.with_metadata({**table.schema.metadata, ARROW_KEY: UNSEALED})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table.cast(schema))
    return sealed_arrow(sink.getvalue())


def test_a_group_comes_back_as_it_was():
    assert group_from_arrow(group_to_arrow(GROUP)) == GROUP


def test_the_times_of_a_turn_come_back_and_are_no_part_of_what_makes_turns_equal():
    (turn,) = group_from_arrow(group_to_arrow(GROUP)).rollouts[0].turns
    assert (turn.begun_seconds, turn.duration_seconds) == (0.5, 1.25)
    assert turn == replace(turn, begun_seconds=None, duration_seconds=None)


def test_turns_from_before_they_were_timed_have_no_times():
    (turn,) = group_from_arrow(before_times(group_to_arrow(GROUP))).rollouts[0].turns
    assert (turn.begun_seconds, turn.duration_seconds) == (None, None)
    assert turn == TURN


def test_a_refused_prompt_is_a_group_without_rollouts():
    refused = RolloutGroup(
        ticket=1, prompt=Prompt(id="", messages=[]), rollouts=[], model_version=0, refusal="no prompt"
    )
    assert group_from_arrow(group_to_arrow(refused)) == refused


def test_half_a_surrogate_pair_is_a_question_mark_wherever_a_group_has_text():
    half, first = "a\ud800", GROUP.rollouts[0]
    rollout = replace(
        first,
        completion=[{"role": "assistant", "content": half, half: [half]}],
        error=half,
        tool_calls=[ToolCall(turn_index=0, name=half, reason=half)],
        prompt=[{"role": "user", "content": half}],
        stay=Stay(environment=half, reset_seconds=0.0, reward_error=half),
        columns={half: half},
    )
    asked = Prompt(id="a", messages=[{"role": "user", "content": half}], facts={half: {half: half}})
    group = replace(GROUP, prompt=asked, rollouts=[rollout, GROUP.rollouts[1]], refusal=half)
    found = group_from_arrow(group_to_arrow(group))
    (one, other), told = found.rollouts, "a?"
    assert one.completion == [{"role": "assistant", "content": told, told: [told]}]
    assert (one.error, one.prompt, one.columns) == (told, [{"role": "user", "content": told}], {told: told})
    assert one.stay == Stay(environment=told, reset_seconds=0.0, reward_error=told)
    assert one.tool_calls == [ToolCall(turn_index=0, name=told, reason=told)]
    assert (found.prompt.facts, found.refusal) == ({told: {told: told}}, told)
    assert (one.turns, other) == (first.turns, GROUP.rollouts[1])


def test_half_a_surrogate_pair_is_a_question_mark_wherever_scores_have_text():
    half, told = "a\ud800", "a?"
    score = Score(
        reward=half,
        weight=1.0,
        values=[None],
        errors=[half],
        duration_seconds=0.5,
        extras={half: [half]},
        metrics={half: 1.0},
    )
    scored = ScoredGroup(ticket=3, prompt_id="a", model_version=2, rewards=[1.0], scores=[score], **LENGTHS)
    (found,) = scored_from_arrow(scored_to_arrow(scored)).scores
    expected = {"reward": told, "errors": [told], "extras": {told: [told]}, "metrics": {told: 1.0}}
    assert found == replace(score, **expected)


def test_scores_come_back_as_they_were():
    scored = ScoredGroup(
        ticket=3,
        prompt_id="a",
        model_version=2,
        rewards=[1.5, math.nan],
        scores=[
            Score(
                reward="r",
                weight=0.5,
                values=[3.0, None],
                errors=[None, "raised"],
                duration_seconds=0.25,
                extras={"answer": ['"4"', None], "right": [True, False], "size": [2, 0.5]},
                metrics={"longest_max": 3.0},
            ),
            Score(reward="s", weight=1.0, values=[None, None], errors=[None, None], extras={"answer": ["é", "5"]}),
        ],
        marks=frozenset({Mark.TOO_FEW_SCORES, Mark.LEFT_OUT}),
        left_out_by="overlong",
        num_prompt_tokens=[2, 2],
        num_completion_tokens=[2, 0],
        num_forwarded_tokens=[4, 0],
        terminated=[True, False],
        truncated=[False, True],
        duplicates=[False, False],
        num_turns=[1, 2],
        num_sequences=[1, 0],
        duration_seconds=[0.5, 0.25],
        drift_tokens=[[], [3]],
        tool_calls=[[], [ToolCall(turn_index=0, name="add", duration_seconds=0.5)]],
        loop_exhausted=[False, True],
        stays=[None, Stay(environment="Maze", reset_seconds=0.5, reward_seconds=0.25, reward_error="lost")],
        pace=Pace(concurrency=8, concurrency_cap=16, backpressure_seconds=0.5, interval_seconds=2.0),
        scoring=Scoring(seconds=0.25, wait_seconds=0.0, queue_size=3),
        scored_at=2.5,
    )
    found = scored_from_arrow(scored_to_arrow(scored))
    assert math.isnan(found.rewards[1])
    assert {**vars_of(found), "rewards": None} == {**vars_of(scored), "rewards": None}
    assert found.rewards[0] == 1.5


def test_records_from_before_there_were_tools_have_no_calls():
    group = pa.ipc.open_file(group_to_arrow(GROUP)).read_all().drop_columns(["tool_calls", "stay"])
    found = group_from_arrow(written(group)).rollouts
    assert [(rollout.tool_calls, rollout.stay) for rollout in found] == [([], None)] * 2
    scored = ScoredGroup(ticket=3, prompt_id="a", model_version=2, rewards=[1.0], scores=[], **LENGTHS)
    table = pa.ipc.open_file(scored_to_arrow(scored)).read_all()
    found = scored_from_arrow(written(table.drop_columns(["tool_calls", "drift_tokens", "loop_exhausted"])))
    assert (found.tool_calls, found.drift_tokens, found.loop_exhausted) == ([[]], [[]], [False])


def test_scores_from_before_there_were_notes_have_none():
    score = Score(reward="r", weight=1.0, values=[1.0], errors=[None], extras={"a": [1]}, metrics={"b": 2.0})
    noted = ScoredGroup(ticket=3, prompt_id="a", model_version=2, rewards=[1.0], scores=[score], **LENGTHS)
    table = pa.ipc.open_file(scored_to_arrow(noted)).read_all().drop_columns(["extras"])
    facts = json.loads(table.schema.metadata[b"agrpo.facts"])
    facts["sources"] = [{"reward": "r", "weight": 1.0}]
    older = table.replace_schema_metadata({**table.schema.metadata, b"agrpo.facts": json.dumps(facts)})
    assert scored_from_arrow(written(older)).scores == [replace(score, extras={}, metrics={})]


def vars_of(scored: ScoredGroup) -> dict[str, object]:
    return {name: getattr(scored, name) for name in ScoredGroup.__dataclass_fields__}


def test_an_unknown_column_is_ignored():
    table = pa.ipc.open_file(group_to_arrow(GROUP)).read_all()
    wider = table.append_column("mood", pa.array(["good", "bad"]))
    assert group_from_arrow(written(wider)) == GROUP


def test_a_higher_major_version_is_refused_and_a_higher_minor_is_read():
    data = group_to_arrow(GROUP)
    assert group_from_arrow(rewritten(data, **{"agrpo.schema_version": "1.7"})) == GROUP
    with pytest.raises(RecordError, match="upgrade agrpo"):
        group_from_arrow(rewritten(data, **{"agrpo.schema_version": "2.0"}))


def test_torn_and_foreign_bytes_are_refused():
    data = bytes(group_to_arrow(GROUP))
    with pytest.raises(RecordError, match="damaged"):
        group_from_arrow(data[: len(data) // 2])
    with pytest.raises(RecordError, match="expected a scored record, found group"):
        scored_from_arrow(data)


def test_ids_and_logprobs_are_plain_zero_copy_columns():
    assert GROUP_SCHEMA.field("completion_ids").type.value_type == pa.int32()
    assert not GROUP_SCHEMA.field("completion_ids").type.value_field.nullable


def test_a_group_of_a_time_without_limits_and_polls_has_none():
    pace = Pace(concurrency=8, concurrency_cap=16, backpressure_seconds=0.5, interval_seconds=2.0)
    group = RolloutGroup(ticket=1, prompt=Prompt(id="p", messages=[]), rollouts=[], model_version=0, pace=pace)
    data = group_to_arrow(group)
    facts = json.loads(pa.ipc.open_file(data).schema.metadata[b"agrpo.facts"])
    known = ("concurrency", "concurrency_cap", "backpressure_seconds", "interval_seconds")
    facts["pace"] = {name: facts["pace"][name] for name in known}
    assert group_from_arrow(rewritten(data, **{"agrpo.facts": json.dumps(facts)})) == group


def test_facts_of_a_newer_version_are_ignored():
    group = RolloutGroup(
        ticket=1,
        prompt=Prompt(id="p", messages=[]),
        rollouts=[],
        model_version=0,
        pace=Pace(concurrency=8, concurrency_cap=16),
    )
    data = group_to_arrow(group)
    facts = pa.ipc.open_file(data).schema.metadata[b"agrpo.facts"].decode()
    facts = facts.replace('"concurrency":', '"of_a_later_day": 1, "concurrency":')
    later = rewritten(data, **{"agrpo.facts": facts})
    assert group_from_arrow(later).pace == group.pace
