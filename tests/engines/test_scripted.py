"""The engine without a model."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines import engines
from agrpo.engines.scripted import Scripted
from agrpo.errors import ConfigError
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from tests.engines.asking import group


def complete(requests: list[CompletionRequest], **knobs: object) -> list[TurnRecord]:
    async def main() -> list[TurnRecord]:
        engine = Scripted(**knobs)(ModelSection(path="anything"))
        await engine.load(Path("anything"), 3)
        return await engine.complete(requests)

    return asyncio.run(main())


@pytest.mark.spec("K35")
def test_a_completion_depends_on_prompt_and_seed_alone():
    first, second = (complete(group([7, 8], range(8), top_k=top_k)) for top_k in (0, 5))
    assert [turn.output_ids for turn in first] == [turn.output_ids for turn in second]
    assert len({tuple(turn.output_ids) for turn in first}) == 8
    assert complete(group([7, 9], [0]))[0].output_ids != first[0].output_ids


def test_a_completion_has_the_scripted_length_and_ends_with_the_stop_token():
    [turn] = complete(group([7], [0], stop=(1, 2)), length=5)
    assert len(turn.output_ids) == 5
    assert turn.output_ids[-1] == 1
    assert not {1, 2} & {*turn.output_ids[:-1]}
    assert turn.stop_reason is StopReason.STOP
    assert turn.output_versions == [3] * 5


def test_whole_completions_are_said_as_the_seed_picks_them():
    said = [[5, 6], [7]]
    turns = complete(group([7], range(4)), completions=said)
    assert [turn.output_ids for turn in turns] == [[5, 6, 1], [7, 1], [5, 6, 1], [7, 1]]
    assert {turn.stop_reason for turn in turns} == {StopReason.STOP}
    [cut] = complete(group([7], [0], max_completion_length=1), completions=said)
    assert (cut.output_ids, cut.stop_reason) == ([5], StopReason.LENGTH)
    [ended] = complete(group([7], [1], stop=(1,)), completions=said, stop_id=9)
    assert (ended.output_ids, ended.stop_reason) == ([7, 9], StopReason.LENGTH)


def test_ids_beyond_the_vocabulary_are_refused_before_anything_is_said():
    with pytest.raises(ConfigError) as refused:
        engines.build("scripted", {"vocab_size": 8, "completions": [[7, 8], [9, 8]]})
    (problem,) = refused.value.problems
    assert "completions" in problem
    assert "the ids 8, 9 are not below vocab_size = 8" in problem


def test_a_completion_that_does_not_stop_runs_to_its_limit():
    for knobs, stop in (({"length": 50}, (1,)), ({}, ()), ({"stop_id": 9}, (1,))):
        [turn] = complete(group([7], [0], stop=stop, max_completion_length=12), **knobs)
        assert len(turn.output_ids) == 12
        assert turn.stop_reason is StopReason.LENGTH


def test_every_token_is_equally_likely_among_those_kept():
    [whole] = complete(group([7], [0]), vocab_size=50)
    [kept] = complete(group([7], [0], top_k=8, top_p=0.6, num_sampler_logprobs=3), vocab_size=50)
    assert whole.output_log_probs == [-math.log(50)] * 8
    assert kept.output_log_probs == [-math.log(5)] * 8
    assert [len(candidates) for candidates in kept.output_sampling_mask] == [5] * 8
    assert [list(top.values()) for top in kept.output_sampler_logprobs] == [[-math.log(5)] * 3] * 8


def test_the_tokens_carry_the_version_loaded_when_the_answer_is_given():
    async def main() -> list[TurnRecord]:
        engine = Scripted(delay_seconds=0.01)(ModelSection(path="anything"))
        await engine.load(Path("anything"), 0)
        call = asyncio.create_task(engine.complete(group([7], [0])))
        await asyncio.sleep(0)
        await engine.load(Path("anything"), 1)
        return await call

    assert set(asyncio.run(main())[0].output_versions) == {1}
