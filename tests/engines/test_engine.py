"""The transformers engine as its callers see it: repeatable, cancellable, never silent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, engines
from agrpo.errors import EngineError, ModelError, UnknownName
from agrpo.records.rollout import StopReason
from tests.engines.asking import bits_of, group, prompt_of


async def begun_and_left_running(engine: Engine, **sampling: object) -> asyncio.Task:
    """A long call that has some tokens by the time this returns: it stands before a call that was answered."""
    running = asyncio.create_task(
        engine.complete(group(prompt_of(8), [1], stop=(), max_completion_length=400, **sampling))
    )
    await asyncio.sleep(0)
    await engine.complete(group(prompt_of(8), [2], stop=(), max_completion_length=2))
    return running


def order_of_answers(calls: list[tuple[int, int]], **sampling: object) -> Callable[[Engine], Awaitable[list[int]]]:
    """Places of the calls (rows, tokens) in the order in which they are answered, all sent at once."""

    async def body(engine: Engine) -> list[int]:
        answered: list[int] = []

        async def send(place: int, rows: int, most: int) -> None:
            await engine.complete(group(prompt_of(8), range(rows), stop=(), max_completion_length=most, **sampling))
            answered.append(place)

        await asyncio.gather(*[send(place, *call) for place, call in enumerate(calls)])
        return answered

    return body


def test_the_same_batch_gives_the_same_bits(serve):
    requests = [request for length in (3, 9) for request in group(prompt_of(length), range(8))]

    async def body(engine: Engine):
        return await engine.complete(requests), await engine.complete(requests)

    first, second = serve(body)
    assert bits_of(first) == bits_of(second)
    assert bits_of(serve(lambda engine: engine.complete(requests))) == bits_of(first)


def test_a_reproducible_call_gives_the_same_bits_whatever_else_is_decoded(serve):
    groups = [group(prompt_of(5 + seed % 9, seed), range(8), reproducible=True) for seed in range(12)]
    noise = [group(prompt_of(4, seed), range(3), max_completion_length=20) for seed in range(6)]

    async def one_by_one(engine: Engine):
        return [await engine.complete(requests) for requests in groups]

    async def all_at_once(engine: Engine):
        mixed = [call for pair in zip(groups, noise + noise, strict=True) for call in pair]
        answers = await asyncio.gather(*[engine.complete(requests) for requests in mixed])
        return answers[::2]

    alone, together = serve(one_by_one), serve(all_at_once)
    assert [bits_of(turns) for turns in alone] == [bits_of(turns) for turns in together]


def test_reproducible_calls_run_one_after_another_in_the_order_of_their_calls(serve):
    assert serve(order_of_answers([(1, 40), (1, 2), (1, 20)], reproducible=True)) == [0, 1, 2]


def test_calls_that_share_their_steps_are_answered_as_they_end(serve):
    assert serve(order_of_answers([(1, 40), (1, 2), (1, 20)])) == [1, 2, 0]


def test_few_that_wait_do_not_slow_down_many_that_run(serve):
    async def body(engine: Engine, num_waiting: int) -> bool:
        many = asyncio.create_task(engine.complete(group(prompt_of(8), range(9), stop=(), max_completion_length=60)))
        while not engine._worker._cohorts:
            await asyncio.sleep(0)
        await engine.complete(group(prompt_of(8), range(num_waiting), stop=(), max_completion_length=2))
        return many.done()

    assert serve(lambda engine: body(engine, 4))
    assert not serve(lambda engine: body(engine, 5))


def test_a_reproducible_call_larger_than_a_batch_gives_the_same_bits(serve):
    requests = group(prompt_of(6), range(10), reproducible=True)
    first, second = (serve(lambda engine: engine.complete(requests), batch_rollouts=4) for _ in range(2))
    assert bits_of(first) == bits_of(second)


@pytest.mark.spec("K35")
def test_a_seed_repeats_its_text_and_other_seeds_give_others(serve):
    seeds = [*range(6), 5 + 2**32, 2**63 - 1]
    turns = serve(lambda engine: engine.complete(group(prompt_of(10), [*seeds, *seeds], stop=())))
    texts = [tuple(turn.output_ids) for turn in turns]
    assert texts[:8] == texts[8:]
    assert len(set(texts)) == 8


def test_a_shorter_limit_cuts_the_same_completion(serve):
    async def body(engine: Engine):
        long, short = (group(prompt_of(10), [4], stop=(), max_completion_length=most) for most in (12, 5))
        return await engine.complete(long), await engine.complete(short)

    [long], [short] = serve(body)
    assert short.output_ids == long.output_ids[:5]


def test_a_request_that_spans_a_load_carries_both_versions_and_follows_the_new_weights(
    serve, changed_weights, vocabulary: int
):
    uniform = changed_weights(lambda tensors: tensors["model.norm.weight"].zero_())

    async def body(engine: Engine):
        running = await begun_and_left_running(engine)
        await engine.load(uniform, 1)
        return await running

    [turn] = serve(body)
    begun = turn.output_versions.count(0)
    assert 0 < begun < 400
    assert turn.output_versions == [0] * begun + [1] * (400 - begun)
    assert turn.output_log_probs[begun:] == pytest.approx([-math.log(vocabulary)] * (400 - begun), abs=1e-5)
    assert turn.output_log_probs[:begun] != pytest.approx([-math.log(vocabulary)] * begun, abs=1e-1)


def test_the_loop_goes_on_while_a_call_is_decoded(serve):
    async def body(engine: Engine) -> int:
        call = asyncio.create_task(engine.complete(group(prompt_of(8), range(4), stop=(), max_completion_length=40)))
        turns_of_the_loop = 0
        while not call.done():
            await asyncio.sleep(0)
            turns_of_the_loop += 1
        return turns_of_the_loop

    assert serve(body) > 10


def test_a_cancelled_call_leaves_the_others_alone(serve):
    async def body(engine: Engine):
        running = await begun_and_left_running(engine)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await engine.complete(group(prompt_of(9), [3]))

    alone = serve(lambda engine: engine.complete(group(prompt_of(9), [3])))
    assert [turn.output_ids for turn in serve(body)] == [turn.output_ids for turn in alone]


def test_closing_fails_what_is_in_flight_and_what_comes_later(serve):
    async def body(engine: Engine):
        running = await begun_and_left_running(engine)
        await engine.close()
        with pytest.raises(EngineError, match="closed before it answered"):
            await running
        with pytest.raises(EngineError, match="closed"):
            await engine.complete(group(prompt_of(9), [3]))
        with pytest.raises(EngineError, match="closed"):
            await engine.load(Path(), 1)

    serve(body)


def test_a_prompt_without_room_for_a_completion_fails_its_own_call_with_the_lengths(serve):
    async def body(engine: Engine):
        fine, long = await asyncio.gather(
            engine.complete(group(prompt_of(5), [0])),
            engine.complete(group(prompt_of(1024), [0])),
            return_exceptions=True,
        )
        assert fine[0].stop_reason in (StopReason.STOP, StopReason.LENGTH)
        raise long

    with pytest.raises(EngineError, match=r"1024 tokens leaves no room.*max_position_embeddings is 1024"):
        serve(body)


@pytest.mark.parametrize(("prompt_ids", "message"), [([], "0 tokens"), ([5, 400], "id 400 is none"), ([-1], "id -1")])
def test_a_prompt_the_model_cannot_read_is_refused(serve, prompt_ids: list[int], message: str):
    with pytest.raises(EngineError, match=message):
        serve(lambda engine: engine.complete(group(prompt_ids, [0])))


def test_a_step_that_fails_fails_its_calls_and_the_engine_goes_on(serve, changed_weights, tiny_model: Path):
    broken = changed_weights(lambda tensors: tensors["model.norm.weight"].fill_(math.nan))

    async def body(engine: Engine):
        await engine.load(broken, 1)
        calls = [engine.complete(group(prompt_of(length), range(2))) for length in (5, 6)]
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(failed, EngineError)
            assert "requests failed: EngineError: the model gives NaN" in str(failed)
        await engine.load(tiny_model, 2)
        return await engine.complete(group(prompt_of(5), [0]))

    [turn] = serve(body)
    assert set(turn.output_versions) == {2}


def test_a_model_that_is_nowhere_is_refused_with_what_was_looked_for(tmp_path: Path):
    missing = tmp_path / "nothing"
    with pytest.raises(ModelError, match=f"no folder {missing}"):
        engines.build("transformers", {})(ModelSection(path=str(missing)))
    with pytest.raises(ModelError, match="no model of that id"):
        engines.build("transformers", {})(ModelSection(path="nobody/nothing"))


def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match=r"looked in .* for a causal language model that save_pretrained wrote"):
        engines.build("transformers", {})(ModelSection(path=str(tmp_path)))


def test_an_unknown_engine_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownName, match='did you mean "transformers"'):
        engines["transformer"]
