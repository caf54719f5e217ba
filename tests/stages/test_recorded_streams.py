"""What real engines once sampled, played again: the same prompts are asked for, and each token is trained once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agrpo.errors import EngineError
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sample import sequences_of
from agrpo.records.sampling import CompletionRequest
from tests.stages.playing import Playing, Stage, tokenizer_with
from tests.stages.recorded_streams import MAX_TOKENS, SAMPLING, STREAMS, TEMPLATES, TOOL
from tests.stages.returned import assert_trained_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RECORDED: list[dict[str, Any]] = json.loads(STREAMS.read_text("utf-8"))


class Replaying(Playing):
    """Answers each request with the recorded turn, if it is the recorded request."""

    def __init__(self, stage: Stage, rollouts: list[list[dict[str, Any]]]) -> None:
        super().__init__(stage.renderer, lambda index, turn: [])
        self.turns = [[_turn(**turn) for turn in rollout] for rollout in rollouts]

    def _turn(self, request: CompletionRequest) -> TurnRecord:
        index, turn = self.places[request.seed]
        recorded = self.turns[index][turn]
        if request.prompt_ids != recorded.prompt_ids:
            raise EngineError(f"turn {turn} of rollout {index} asks with another prompt than was recorded")
        return recorded


def _turn(stop_reason: str, **fields: Any) -> TurnRecord:
    return TurnRecord(stop_reason=StopReason(stop_reason), **fields)


@pytest.mark.parametrize("stream", RECORDED, ids=lambda stream: f"{stream['engine']}-{stream['template']}")
def test_a_stream_of_a_real_engine_is_trained_as_it_was_sampled(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, stream: dict[str, Any]
):
    model = tokenizer_with(tiny_tokenizer, tmp_path, TEMPLATES[stream["template"]])
    stage = Stage(model, TOOL, max_tokens=MAX_TOKENS)
    engine = Replaying(stage, stream["rollouts"])
    rollouts = asyncio.run(stage.sampled(engine, SAMPLING))
    assert [list(rollout.turns) for rollout in rollouts] == engine.turns
    for rollout in rollouts:
        assert rollout.error is None
        assert_trained_once(rollout, engine.returned[rollout.index])
        assert len(sequences_of(rollout)) == 1 or stream["template"] == "forgets"


def test_the_streams_are_of_both_engines_and_of_several_turns():
    assert {(stream["engine"], stream["template"]) for stream in RECORDED} == {
        ("transformers", "appends"),
        ("transformers", "forgets"),
        ("vllm", "appends"),
    }
    for stream in RECORDED:
        assert sum(len(rollout) > 1 for rollout in stream["rollouts"]) >= 2
