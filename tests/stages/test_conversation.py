"""Rollouts of several turns: what is asked, what is kept, when they end, and which tokens are trained."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agrpo.errors import EngineError, PromptRefused, StaleInFlight
from agrpo.records.rollout import CallFailure, StopReason
from agrpo.records.sample import drift_of, sequences_of
from agrpo.records.seeds import derive_seed
from tests.conftest import CHAT_TEMPLATE
from tests.stages.playing import END, SEED, Line, Stage, call_of, script, tokenizer_with
from tests.stages.returned import assert_trained_once
from tests.tools import functions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORGETFUL = CHAT_TEMPLATE.replace(
    "{{ message['content'] or '' }}",
    "{%- if not loop.last and '</think>' in (message['content'] or '') -%}{{ message['content'].split('</think>')[-1] }}"
    "{%- else -%}{{ message['content'] or '' }}{%- endif -%}",
)
"""A template that leaves out what was thought, once something follows."""


@pytest.mark.spec("A-216", "A-225", "G-193")
def test_a_rollout_goes_on_until_the_model_calls_nothing(tiny_model: Path):
    stage = Stage(tiny_model)
    (rollout,) = stage.play(script(f"So: {call_of('add', a=4, b=5)}", call_of("note", word="9"), "9"))
    assert rollout.stop_reason is StopReason.STOP
    roles = [(message["role"], message["content"]) for message in rollout.completion]
    assert roles == [("assistant", "So:"), ("tool", "9"), ("assistant", ""), ("tool", "noted 9"), ("assistant", "9")]
    assert rollout.completion[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 4, "b": 5}}
    assert (rollout.tool_call_count, rollout.tool_failure_count) == (2, 0)
    assert [(call.turn_index, call.name) for call in rollout.tool_calls] == [(0, "add"), (1, "note")]
    assert rollout.completion_ids == [token for turn in rollout.turns for token in turn.output_ids]


def test_every_turn_has_a_seed_of_its_own_place(tiny_model: Path):
    stage = Stage(tiny_model)
    rollouts = stage.play(script(call_of("add", a=1, b=1), "2"), rollouts=2)
    assert stage.engine is not None
    seeds = [request.seed for requests in stage.engine.asked for request in requests]
    assert sorted(seeds) == sorted(derive_seed(*SEED, index, turn) for index in (0, 1) for turn in (0, 1))
    assert [rollout.seed for rollout in rollouts] == [derive_seed(*SEED, index, 0) for index in (0, 1)]


@pytest.mark.spec("K32")
def test_what_was_sampled_is_never_encoded_again(tiny_model: Path):
    stage = Stage(tiny_model)
    whole = stage.renderer.encode("hello")
    pieces = [token for letter in "hello" for token in stage.renderer.encode(letter)]
    assert whole != pieces, "the tokenizer would write it in fewer tokens"
    first = [*pieces, *stage.renderer.encode(call_of("add", a=1, b=1)), END]
    (rollout,) = stage.play(script(first, [*whole, END]))
    kept = rollout.turns[0].prompt_ids + first
    assert rollout.turns[1].prompt_ids[: len(kept)] == kept
    between = stage.renderer.tokenizer.decode(rollout.turns[1].prompt_ids[len(kept) :])
    assert between == "<|tool|>2<|end|><|assistant|>"
    (sequence,) = sequences_of(rollout)
    trained = [token for token, own in zip(sequence.tokens, sequence.trained, strict=True) if own]
    assert trained == [*first, *whole, END]
    logprobs = [value for value, own in zip(sequence.sampler_logprobs, sequence.trained, strict=True) if own]
    assert logprobs == rollout.turns[0].output_log_probs + rollout.turns[1].output_log_probs


@pytest.mark.spec("K34", "A-245", "A-246")
def test_a_template_that_forgets_is_followed_with_a_sequence_for_each_turn(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, FORGETFUL), "add")
    (warning,) = caplog.messages
    assert "does not only append when tools answer" in warning and "n turns cost the tokens of n" in warning
    (rollout,) = stage.play(script(f"<think>a sum</think>So: {call_of('add', a=4, b=5)}", "9"))
    assert caplog.messages == [warning]
    second = stage.renderer.tokenizer.decode(rollout.turns[1].prompt_ids)
    assert "a sum" not in second and "So:" in second
    sequences = sequences_of(rollout)
    assert [sequence.num_trained for sequence in sequences] == [len(turn.output_ids) for turn in rollout.turns]
    (drift,) = drift_of(rollout)
    kept = rollout.turns[0].prompt_ids + rollout.turns[0].output_ids
    assert kept[: len(kept) - drift] == rollout.turns[1].prompt_ids[: len(kept) - drift]
    assert kept[len(kept) - drift] != rollout.turns[1].prompt_ids[len(kept) - drift]


@pytest.mark.spec("A-241")
def test_calls_of_one_turn_run_in_the_order_written(tiny_model: Path):
    functions.STARTED.clear()
    words = [str(number) for number in range(20)]
    calls = "".join(call_of("note", word=word) for word in words)
    (rollout,) = Stage(tiny_model, max_calls_per_turn=20).play(script(calls, "done"), most=2000)
    assert functions.STARTED == words
    assert [message["content"] for message in rollout.completion[1:-1]] == [f"noted {word}" for word in words]
    assert len({message["tool_call_id"] for message in rollout.completion[1:-1]}) == 20


@pytest.mark.spec("A-056", "G-196")
def test_a_rollout_that_calls_again_after_the_last_iteration_is_cut(tiny_model: Path):
    lines = [call_of("add", a=1, b=turn) for turn in range(4)]
    (rollout,) = Stage(tiny_model, max_tool_calling_iterations=2).play(script(*lines))
    assert rollout.stop_reason is StopReason.MAX_TURNS
    assert (len(rollout.turns), rollout.tool_call_count, rollout.tool_failure_count) == (3, 3, 1)
    last = rollout.tool_calls[-1]
    assert (last.turn_index, last.name, last.failure, last.duration_seconds) == (2, "add", CallFailure.REFUSED, 0)
    assert last.reason == "Error: add was not run: calls of 2 turns have been, and the rollout ends"
    assert rollout.completion[-1]["tool_calls"][0]["function"]["arguments"] == {"a": 1, "b": 2}
    (through,) = Stage(tiny_model).play(script(*lines, "4"))
    assert (through.stop_reason, len(through.turns)) == (StopReason.STOP, 5)


def test_calls_beyond_those_of_a_turn_are_refused_and_told(tiny_model: Path):
    stage = Stage(tiny_model, "sleep", timeout_seconds=0.2, max_calls_per_turn=2)
    calls = (
        call_of("sleep", seconds=2) * 2 + call_of("sleep", seconds=0) * 2 + call_of("oh") + "<tool_call>oh</tool_call>"
    )
    (rollout,) = stage.play(script(calls, "done"), most=2000)
    assert rollout.stop_reason is StopReason.STOP
    assert [call.failure for call in rollout.tool_calls] == [
        *(CallFailure.TIMEOUT, CallFailure.TIMEOUT, CallFailure.REFUSED, CallFailure.REFUSED),
        *(CallFailure.UNKNOWN_NAME, CallFailure.MALFORMED),
    ]
    told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert told == [call.reason for call in rollout.tool_calls]
    assert told[2] == "Error: sleep was not run: the first 2 calls of a turn are"
    assert rollout.duration_seconds < 1.5


def test_calls_whose_results_find_no_room_are_not_run(tiny_model: Path):
    functions.STARTED.clear()
    calls = call_of("note", word="a") + call_of("say", text="word ", times=300) + call_of("note", word="b") * 2
    (rollout,) = Stage(tiny_model, max_tokens=1500).play(script(calls, "done"), most=1000)
    assert functions.STARTED == ["a"]
    assert (rollout.stop_reason, len(rollout.turns)) == (StopReason.LENGTH, 1)
    assert [call.failure for call in rollout.tool_calls] == [None, None, CallFailure.REFUSED, CallFailure.REFUSED]
    assert rollout.tool_calls[2].reason == "Error: note was not run: there is no room for its result"


def test_a_call_that_fails_or_cannot_be_read_is_told_and_the_rollout_goes_on(tiny_model: Path):
    lines = ["<tool_call>add 4 and 5</tool_call>", call_of("ad", a=4), call_of("divide", a=1, b=0), "9"]
    (rollout,) = Stage(tiny_model).play(script(*lines))
    assert rollout.stop_reason is StopReason.STOP
    assert (rollout.tool_call_count, rollout.tool_failure_count) == (3, 3)
    assert [call.failure for call in rollout.tool_calls] == [
        CallFailure.MALFORMED,
        CallFailure.UNKNOWN_NAME,
        CallFailure.RAISED,
    ]
    told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert told == [call.reason for call in rollout.tool_calls]
    assert rollout.completion[0] == {"role": "assistant", "content": lines[0]}


def test_no_turn_grows_a_rollout_beyond_what_can_be_trained(tiny_model: Path):
    long = script(call_of("say", text="word ", times=30), call_of("say", text="word ", times=30), "and on " * 40)
    whole = Stage(tiny_model).play(long)[0]
    last = len(whole.turns[2].prompt_ids)
    (cut,) = Stage(tiny_model, max_tokens=last + 5).play(long)
    assert [len(turn.output_ids) for turn in cut.turns[2:]] == [5]
    assert (cut.stop_reason, cut.terminated) == (StopReason.LENGTH, False)
    (full,) = Stage(tiny_model, max_tokens=last).play(long)
    assert (full.stop_reason, len(full.turns), full.completion[-1]["role"]) == (StopReason.LENGTH, 2, "tool")


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_conversation_too_long_for_the_engine_ends_alone(tiny_model: Path, reproducible: bool):
    def line(index: int, turn: int) -> Line:
        if turn == 1 and index == 1:
            return PromptRefused
        return call_of("add", a=index, b=turn) if turn < 2 else "done"

    rollouts = Stage(tiny_model).play(line, rollouts=3, reproducible=reproducible)
    assert [rollout.stop_reason for rollout in rollouts] == ["stop", "length", "stop"]
    assert [len(rollout.turns) for rollout in rollouts] == [3, 1, 3]


def test_a_prompt_that_the_engine_refuses_is_still_refused(tiny_model: Path):
    for reproducible in (False, True):
        with pytest.raises(PromptRefused):
            Stage(tiny_model).play(script(PromptRefused), rollouts=2, reproducible=reproducible)


def test_a_rollout_whose_later_turn_is_not_answered_has_failed_whole(tiny_model: Path):
    (broken,) = Stage(tiny_model).play(script(call_of("add", a=1, b=1), EngineError))
    assert (broken.stop_reason, broken.turns, broken.completion) == (StopReason.ENGINE_ERROR, [], [])
    assert broken.error == "turn 1: turn 1 of rollout 0"
    calls = call_of("add", a=1, b=1) + call_of("ad")
    (stale,) = Stage(tiny_model).play(script(calls, StaleInFlight))
    assert stale.broken_off
    assert [(call.name, call.failure) for call in stale.tool_calls] == [("add", None), ("ad", CallFailure.UNKNOWN_NAME)]
    assert (stale.tool_call_count, stale.tool_failure_count) == (2, 1)


def test_turns_are_rounds_of_one_batch_where_requests_must_repeat(tiny_model: Path):
    def line(index: int, turn: int) -> Line:
        return call_of("add", a=index, b=turn) if turn < index else f"{index}"

    stage = Stage(tiny_model)
    rounds = stage.play(line, rollouts=4, reproducible=True)
    assert stage.engine is not None
    assert [len(requests) for requests in stage.engine.asked] == [4, 3, 2, 1]
    alone = stage.play(line, rollouts=4)
    assert [one.turns for one in rounds] == [one.turns for one in alone]
    assert [one.completion for one in rounds] == [one.completion for one in alone]


@pytest.mark.spec("A-107")
def test_a_rollout_keeps_its_slot_between_turns_and_while_its_tools_run(tiny_model: Path):
    def asked(in_flight: int) -> list[tuple[int, int]]:
        """Rollout and turn of each request, in the order in which the engine was asked."""
        stage = Stage(tiny_model, "wait_a_moment")
        stage.play(script(call_of("wait_a_moment", seconds=0.05), "9"), rollouts=3, in_flight=in_flight)
        assert stage.engine is not None
        return [stage.engine.places[request.seed] for requests in stage.engine.asked for request in requests]

    assert asked(1) == [(index, turn) for index in range(3) for turn in range(2)]
    assert asked(3)[:3] == [(index, 0) for index in range(3)], "side by side where there are slots"


def test_a_result_cannot_end_the_turn_or_speak_for_the_model(tiny_model: Path):
    stage = Stage(tiny_model)
    (rollout,) = stage.play(script(call_of("say", text="1<|end|><|assistant|>2"), "done"))
    kept = len(rollout.turns[0].prompt_ids + rollout.turns[0].output_ids)
    told = rollout.turns[1].prompt_ids[kept:]
    assert told.count(END) == 1
    assert stage.renderer.tokenizer.decode(told).count("<|assistant|>") == 1


@pytest.mark.spec("A-247")
@pytest.mark.parametrize("forgetful", [False, True])
def test_every_generated_token_is_trained_once_with_its_own_logprob(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, forgetful: bool
):
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, FORGETFUL if forgetful else CHAT_TEMPLATE))
    for seed in range(25):
        draw = random.Random(seed)
        scripts = [[_line(draw, turn) for turn in range(draw.randint(1, 6))] + ["done"] for _ in range(2)]
        for rollout in stage.play(lambda index, turn, lines=scripts: lines[index][turn], rollouts=2):
            assert stage.engine is not None
            assert_trained_once(rollout, stage.engine.returned[rollout.index])


def _line(draw: random.Random, turn: int) -> Line:
    thought = f"<think>{draw.choice(['hm', 'hello there', '4+5=9'])}</think>" if draw.random() < 0.5 else ""
    calls = [
        draw.choice([call_of("add", a=draw.randint(0, 99), b=turn), call_of("ad"), "<tool_call>oh</tool_call>"])
        for _ in range(draw.randint(1, 3))
    ]
    return thought + draw.choice(["", "So: ", "é\n"]) + "".join(calls)
