from __future__ import annotations

from dataclasses import replace

import pytest

from agrpo.database import documents
from agrpo.database.batch import Batch
from agrpo.database.ledger import Entry
from agrpo.database.slots import add_group, add_scores
from agrpo.errors import RecordError
from agrpo.records.arrow import group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.progress import Event
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import CallFailure, Rollout, StopReason, ToolCall, TurnRecord
from agrpo.records.sample import sequences_of
from tests.database.synthetic import T0, a_rollout, a_turn
from tests.records.test_arrow import before_times


def a_group(*rollouts: Rollout, **facts: object) -> RolloutGroup:
    prompt = Prompt(id="p", messages=[{"role": "user", "content": "?"}])
    return RolloutGroup(**{"ticket": 4, "prompt": prompt, "rollouts": list(rollouts), "model_version": 2, **facts})


def rows_of(group: RolloutGroup, *, topk: bool = False) -> dict[str, list[dict[str, object]]]:
    batch = Batch()
    add_group(batch, group_to_arrow(group), topk=topk)
    return {name: table.to_pylist() for name, table in batch.tables().items()}


def conversation(index: int = 0, second_prompt: list[int] | None = None) -> Rollout:
    """Two turns with a tool's answer (token 40) between them; the second continues the first unless told otherwise."""
    first = a_turn([7, 8], [5, 6], version=2)
    second = a_turn(second_prompt or [7, 8, 5, 6, 40], [3, 1], version=3)
    messages = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "40"},
        {"role": "assistant", "content": [{"type": "text", "text": "it is "}, {"type": "text", "text": "40"}]},
        {"role": "assistant", "content": "done"},
    ]
    return Rollout(completion=messages, completion_ids=[5, 6, 3, 1], turns=[first, second], index=index)


def test_turns_keep_their_tokens_and_are_numbered_per_rollout():
    turns = rows_of(
        a_group(conversation(0), Rollout(completion=[], completion_ids=[], turns=[], index=1), conversation(2))
    )["turns"]
    assert [(turn["rollout_index"], turn["turn_index"]) for turn in turns] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert turns[3]["ticket"] == 4
    assert turns[3]["prompt_ids"] == [7, 8, 5, 6, 40]
    assert turns[3]["output_ids"] == [3, 1]
    assert turns[3]["output_log_probs"] == [-0.5, -0.5]
    assert turns[3]["output_versions"] == [3, 3]
    assert turns[3]["stop_reason"] == "stop"


def test_a_rollout_is_counted_by_its_turns():
    (row,) = rows_of(a_group(conversation()))["rollouts"]
    assert (row["num_prompt_tokens"], row["num_completion_tokens"], row["num_turns"]) == (2, 4, 2)
    assert row["num_forwarded_tokens"] == 7
    assert row["model_version"] == 2
    assert row["terminated"] is True
    assert row["completion_ids"] == [5, 6, 3, 1]
    assert row["completion_text"] == "it is 40\ndone"


def test_each_rollout_is_counted_by_its_own_turns():
    nothing = Rollout(completion=[], completion_ids=[], turns=[], index=2)
    rollouts = rows_of(a_group(conversation(0), a_rollout(1, [5]), nothing))["rollouts"]
    assert [row["num_turns"] for row in rollouts] == [2, 1, 0]
    assert [row["num_forwarded_tokens"] for row in rollouts] == [7, 4, 0]
    assert [row["model_version"] for row in rollouts] == [2, 0, None]


def test_a_fork_is_forwarded_as_two_sequences():
    rollout = conversation(second_prompt=[7, 9])
    (row,) = rows_of(a_group(rollout))["rollouts"]
    assert row["num_forwarded_tokens"] == 8 == sum(len(own.tokens) for own in sequences_of(rollout))


@pytest.mark.spec("A-314")
def test_what_a_turn_left_of_the_tokens_before_it_is_kept():
    rows = rows_of(a_group(conversation(0), conversation(1, second_prompt=[7, 9]), a_rollout(2, [5])))
    assert [turn["drift_tokens"] for turn in rows["turns"]] == [None, 0, None, 3, None]


def test_the_times_of_each_turn_are_kept_and_null_where_a_slot_is_from_before_there_were_any():
    asked = conversation()
    later = [
        replace(turn, begun_seconds=0.5 * number, duration_seconds=0.25) for number, turn in enumerate(asked.turns)
    ]
    batch = Batch()
    slot = group_to_arrow(a_group(replace(asked, turns=later), conversation(1)))
    for data in (slot, before_times(slot)):
        add_group(batch, data, topk=False)
    found = [(turn["begun_seconds"], turn["duration_seconds"]) for turn in batch.tables()["turns"].to_pylist()]
    assert found == [(0.0, 0.25), (0.5, 0.25), *[(None, None)] * 6]


def test_calls_of_tools_are_numbered_per_rollout():
    failed = ToolCall(turn_index=1, name="ad", failure=CallFailure.UNKNOWN_NAME, reason="Error: no such tool")
    calls = [ToolCall(turn_index=0, name="add", duration_seconds=0.5), failed]
    rows = rows_of(a_group(a_rollout(0, [5]), replace(conversation(1), tool_calls=calls, tool_call_count=2)))
    kept = ("rollout_index", "call_index", "turn_index", "name", "duration_seconds", "failure", "reason")
    assert [tuple(row[name] for name in kept) for row in rows["tool_calls"]] == [
        (1, 0, 0, "add", 0.5, None, None),
        (1, 1, 1, "ad", 0.0, "unknown_name", "Error: no such tool"),
    ]


def test_a_rollout_that_failed_has_its_error_and_no_version():
    failed = Rollout(
        completion=[], completion_ids=[], turns=[], stop_reason=StopReason.ENGINE_ERROR, error="gone", reward=0.5
    )
    (row,) = rows_of(a_group(failed))["rollouts"]
    assert (row["stop_reason"], row["error"], row["model_version"]) == ("engine_error", "gone", None)
    assert (row["terminated"], row["num_prompt_tokens"], row["num_forwarded_tokens"]) == (False, 0, 0)
    assert row["own_reward"] == 0.5


def test_a_cut_turn_is_not_terminated():
    turn = TurnRecord(prompt_ids=[1], output_ids=[], stop_reason=StopReason.LENGTH)
    (row,) = rows_of(a_group(Rollout(completion=[], completion_ids=[], turns=[turn])))["rollouts"]
    assert (row["terminated"], row["num_forwarded_tokens"]) == (False, 1)


def test_a_refused_prompt_is_a_group_without_rollouts():
    rows = rows_of(a_group(refusal="prompt of 900 tokens", claimed_at=T0))
    assert rows["rollouts"] == rows["turns"] == []
    (row,) = rows["groups"]
    assert (row["refusal"], row["num_rollouts"], row["finished_at"]) == ("prompt of 900 tokens", 0, None)
    assert row["claimed_at"].timestamp() == T0


def test_top_tokens_are_recorded_only_when_asked_for():
    group = a_group(conversation())
    assert "top_ids" not in rows_of(group)["turns"][0]
    turn = rows_of(group, topk=True)["turns"][0]
    assert turn["top_ids"] == [[5, 99], [6, 99]]
    assert turn["top_logprobs"] == [[-0.5, -1.5], [-0.5, -1.5]]


def test_damaged_slots_are_refused():
    with pytest.raises(RecordError, match="not a whole group record"):
        add_group(Batch(), group_to_arrow(a_group())[:100], topk=False)
    with pytest.raises(RecordError, match="expected a scored record, found group"):
        add_scores(Batch(), group_to_arrow(a_group()))


def test_half_a_surrogate_pair_does_not_keep_an_event_out():
    batch = Batch()
    documents.add_event(batch, Event(stream="s", number=0, kind="odd", at=T0, payload={"text": "a\ud800b"}))
    assert batch.tables()["events"].to_pylist()[0]["payload"] == '{"text": "a?b"}'


def test_a_batch_is_full_by_rows_entries_or_bytes(monkeypatch):
    monkeypatch.setattr("agrpo.database.batch.MOST_ROWS", 3)
    by_rows, by_entries, by_bytes = Batch(), Batch(), Batch()
    by_rows.add_rows("steps", [{"step": number} for number in range(3)])
    by_entries.entries += [Entry("claims", number) for number in range(3)]
    assert by_rows.is_full and by_entries.is_full and not by_bytes.is_full
    monkeypatch.setattr("agrpo.database.batch.MOST_BYTES", 100)
    add_group(by_bytes, group_to_arrow(a_group(conversation())), topk=True)
    assert by_bytes.is_full
