"""Sampling a group: what is asked, what is kept, and what a rollout that fails leaves behind."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines.scripted import Scripted
from agrpo.errors import EngineError, ModelError, StaleInFlight
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.records.seeds import derive_seed
from agrpo.stages.conversation import Opening
from agrpo.stages.rendering import Renderer
from agrpo.stages.sampling import sample_group
from agrpo.stages.slots import Slots

MESSAGES = [{"role": "user", "content": "4 + 5 ="}]


class Interfered:
    """A scripted engine between which and the caller something may happen."""

    def __init__(self, interfere: Callable[[CompletionRequest, int], str | None]) -> None:
        self.engine = Scripted(vocab_size=50, length=4)(ModelSection(path="none"))
        self.interfere = interfere
        self.asked: Counter[int] = Counter()
        self.pressure, self.dtype, self.behind, self.keeps_deadlines = self.engine.pressure, "float32", False, False

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        turns = await self.engine.complete(requests)
        for request in requests:
            self.asked[request.seed] += 1
            happens = self.interfere(request, self.asked[request.seed])
            if happens == "never answers":
                await asyncio.Event().wait()
            if happens == "answers nothing":
                return []
            if happens == "breaks":
                raise EngineError("the engine broke")
            if happens == "grows stale":
                raise StaleInFlight("its version has left the window")
        return turns

    async def load(self, folder: Path, version: int) -> None:
        await self.engine.load(folder, version)

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        return await self.engine.next_token_logprobs(token_ids, of)

    async def close(self) -> None:
        await self.engine.close()


def sampled(
    model: Path, interfere: Callable[[CompletionRequest, int], str | None], **settings: object
) -> list[Rollout]:
    """A group of four of ticket 7."""
    sampling = Sampling(num_generations=4, max_completion_length=8, **{"request_timeout_seconds": 0.2, **settings})

    async def sample() -> list[Rollout]:
        engine = Interfered(interfere)
        await engine.load(Path("none"), 3)
        renderer = Renderer(ModelSection(path=str(model)))
        opening = Opening(messages=MESSAGES, prompt_ids=renderer.render(MESSAGES), sampling=sampling, seeds=(1, 7))
        return await sample_group(engine, renderer, opening, slots=Slots(4).queue(4))

    return asyncio.run(sample())


def seed_of(rollout_index: int) -> int:
    return derive_seed(1, 7, rollout_index, 0)


@pytest.mark.spec("A-109", "A-218", "A-227")
def test_every_rollout_keeps_the_tokens_and_the_seed_it_was_asked_with(tiny_model: Path):
    rollouts = sampled(tiny_model, lambda request, asked: None)
    assert [rollout.seed for rollout in rollouts] == [seed_of(index) for index in range(4)]
    for rollout in rollouts:
        (turn,) = rollout.turns
        assert turn.output_versions == [3] * 4
        assert rollout.completion_ids == turn.output_ids
        assert rollout.stop_reason is StopReason.STOP
        assert not rollout.completion[0]["content"].endswith("<|end|>")
    assert len({tuple(rollout.completion_ids) for rollout in rollouts}) == 4


@pytest.mark.spec("A-180", "K13")
def test_a_request_without_an_answer_is_asked_again_with_its_seed(tiny_model: Path):
    undisturbed = sampled(tiny_model, lambda request, asked: None)
    rollouts = sampled(
        tiny_model, lambda request, asked: "never answers" if request.seed == seed_of(2) and asked == 1 else None
    )
    assert [rollout.completion_ids for rollout in rollouts] == [one.completion_ids for one in undisturbed]


@pytest.mark.spec("K13")
def test_a_request_that_is_never_answered_fails_alone(tiny_model: Path):
    rollouts = sampled(tiny_model, lambda request, asked: "never answers" if request.seed == seed_of(2) else None)
    assert [rollout.stop_reason for rollout in rollouts].count(StopReason.STOP) == 3
    assert rollouts[2].stop_reason is StopReason.TIMEOUT
    assert rollouts[2].error == "no answer twice within 0.2 s (engine.request_timeout_seconds)"
    assert rollouts[2].duration_seconds >= 0.4
    assert rollouts[2].turns == []


@pytest.mark.spec("K19")
def test_an_answer_without_a_completion_is_a_failure_and_rows_stay_aligned(tiny_model: Path):
    rollouts = sampled(tiny_model, lambda request, asked: "answers nothing" if request.seed == seed_of(0) else None)
    assert rollouts[0].stop_reason is StopReason.ENGINE_ERROR
    assert rollouts[0].error == "asked for one completion, the engine returned 0"
    assert [rollout.index for rollout in rollouts] == [0, 1, 2, 3]


def test_an_engine_error_is_that_rollouts_fact(tiny_model: Path):
    rollouts = sampled(tiny_model, lambda request, asked: "breaks" if request.seed == seed_of(3) else None)
    assert [rollout.error for rollout in rollouts] == [None, None, None, "the engine broke"]


def test_a_request_that_was_broken_off_since_its_version_is_too_old_is_told_from_a_failure(tiny_model: Path):
    rollouts = sampled(tiny_model, lambda request, asked: "grows stale" if request.seed == seed_of(1) else None)
    assert [rollout.stop_reason for rollout in rollouts] == ["stop", "stale_in_flight", "stop", "stop"]
    assert [(one.failed, one.broken_off) for one in rollouts[:2]] == [(False, False), (True, True)]
    assert rollouts[1].error == "its version has left the window"


def test_where_requests_must_repeat_no_failure_is_swallowed(tiny_model: Path):
    with pytest.raises(EngineError, match="the engine broke"):
        sampled(tiny_model, lambda request, asked: "breaks" if request.seed == seed_of(3) else None, reproducible=True)


def test_a_tokenizer_without_a_chat_template_is_refused(tiny_model: Path, tmp_path: Path):
    for name in os.listdir(tiny_model):
        if name != "chat_template.jinja":
            (tmp_path / name).write_bytes((tiny_model / name).read_bytes())
    with pytest.raises(ModelError, match="has no chat template"):
        Renderer(ModelSection(path=str(tmp_path)))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match="no tokenizer in"):
        Renderer(ModelSection(path=str(tmp_path)))
