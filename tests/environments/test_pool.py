"""Instances: each with one rollout at a time, used again after a reset, never again where something may still run in them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from agrpo.environments.factories import kind_at
from agrpo.environments.pool import Broken, Pool
from agrpo.environments.sharing import shared_by
from agrpo.errors import EnvironmentFault, words_of
from agrpo.tools.caller import Caller
from tests.environments import worlds

HERE = "tests.environments.worlds"


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    worlds.HOLDING.clear()
    worlds.MADE.clear()
    yield
    worlds.HOLDING.set()


def pool_of(name: str, *, seconds: float = 5.0, num_threads: int = 4, clock_decides: bool = True) -> Pool:
    caller = Caller(num_threads=num_threads)
    return Pool(kind_at(f"{HERE}:{name}"), caller, seconds=seconds, clock_decides=clock_decides)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.spec("A-261", "G-209")
def test_an_instance_is_used_again_after_a_reset_and_made_once():
    pool = pool_of("Counting")

    async def three_one_after_the_other() -> list[float | None]:
        found: list[float | None] = []
        for _ in range(3):
            visit = pool.visit({})
            await visit.begin()
            visit.tools["count"].function()
            await visit.end(judged=True)
            found.append(visit.stay().reward)
        return found

    assert run(three_one_after_the_other()) == [1.0, 1.0, 1.0]
    (instance,) = worlds.MADE
    assert isinstance(instance, worlds.Counting) and instance.num_resets == 3


def test_rollouts_side_by_side_never_have_the_same_instance():
    pool = pool_of("Counting", num_threads=8)

    async def one() -> float | None:
        visit = pool.visit({})
        await visit.begin()
        for _ in range(5):
            await asyncio.to_thread(visit.tools["count"].function)
        await visit.end(judged=True)
        return visit.stay().reward

    async def many() -> list[float | None]:
        return [value for _ in range(4) for value in await asyncio.gather(*(one() for _ in range(6)))]

    assert run(many()) == [5.0] * 24
    assert len(worlds.MADE) == pool.num_made <= 6
    assert not any(instance.crowded for instance in worlds.MADE)  # type: ignore[attr-defined]


@pytest.mark.spec("A-254", "G-205")
def test_reset_is_given_the_columns_that_it_takes_and_a_copy_of_them():
    takes_all, takes_one = pool_of("Awaiting"), pool_of("Game")
    columns = {"target": 3, "hints": ["odd"]}

    async def begun() -> tuple[list[str], Any]:
        visit = takes_all.visit(columns)
        await visit.begin()
        told = await visit.tools["tell"].function()
        visit.tools["tell"].function.__self__.columns["hints"].append("changed")
        game = takes_one.visit(columns)
        await game.begin()
        return told, game.tools["guess"].function(value=3)

    assert run(begun()) == (["hints", "target"], "right")
    assert columns == {"target": 3, "hints": ["odd"]}


@pytest.mark.spec("K13")
@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        ("reset raises", "Failing.reset raised KeyError: 'reset'"),
        ("reset leaves", "Failing.reset raised SystemExit: 3"),
        ("reset hangs", r"Failing.reset did not return within 0.2 s \(environments.timeout_seconds\)"),
        ("text", "Failing.reset returned int; expected None or a string"),
    ],
)
def test_what_fails_in_reset_is_told_and_the_instance_is_never_lent_again(breaks: str, told: str):
    pool = pool_of("Failing", seconds=0.2)

    async def broken_and_next() -> tuple[object, object]:
        visit = pool.visit({"breaks": breaks})
        with pytest.raises(Broken, match=told):
            await visit.begin()
        following = pool.visit({})
        await following.begin()
        return visit.stay(), following.stay()

    first, second = run(broken_and_next())
    assert pool.num_made == 2
    assert first.reset_seconds >= (0.2 if breaks == "reset hangs" else 0.0)
    assert (first.reward, first.reward_seconds, second.environment) == (None, None, "Failing")


def test_an_environment_that_cannot_be_made_breaks_the_rollout_that_wants_it():
    with pytest.raises(Broken, match="making Unmade raised OSError: no display"):
        run(pool_of("Unmade").visit({}).begin())


@pytest.mark.spec("A-255", "G-206")
@pytest.mark.parametrize(
    ("breaks", "reward", "told"),
    [
        ("", 2.5, None),
        ("get_reward raises", None, "Failing.get_reward raised KeyError: 'get_reward'"),
        ("get_reward hangs", None, "Failing.get_reward did not return within 0.2 s (environments.timeout_seconds)"),
        ("no number", None, "get_reward returned str; expected a number"),
        ("nothing", None, "get_reward returned NoneType; expected a number"),
        ("nan", None, "get_reward returned nan; expected a finite number"),
    ],
)
def test_a_reward_is_a_number_or_missing_with_its_reason(breaks: str, reward: float | None, told: str | None):
    pool = pool_of("Failing", seconds=0.2)

    async def judged() -> Any:
        visit = pool.visit({"breaks": breaks})
        await visit.begin()
        await visit.end(judged=True)
        await pool.visit({}).begin()
        return visit.stay()

    stay = run(judged())
    assert (stay.reward, stay.reward_error) == (reward, told)
    assert stay.reward_seconds >= (0.2 if breaks == "get_reward hangs" else 0.0)
    assert pool.num_made == (2 if breaks == "get_reward hangs" else 1)


def test_a_rollout_that_was_not_finished_is_not_judged_and_its_instance_goes_on():
    pool = pool_of("Failing")

    async def unfinished() -> Any:
        visit = pool.visit({})
        await visit.begin()
        await visit.end(judged=False)
        await pool.visit({}).begin()
        return visit.stay()

    assert run(unfinished()).reward_seconds is None
    assert pool.num_made == 1


def test_an_abandoned_instance_goes_on_unless_something_of_it_may_still_run():
    pool = pool_of("Failing", seconds=0.2)

    async def abandoned(*, in_call: bool) -> int:
        visit = pool.visit({})
        await visit.begin()
        with visit.in_call():
            visit.tools["call"].function()
        if in_call:
            with pytest.raises(asyncio.CancelledError), visit.in_call():
                raise asyncio.CancelledError
        visit.abandon()
        await visit.end(judged=True)
        return pool.num_made

    async def all_three() -> list[int]:
        made = [await abandoned(in_call=in_call) for in_call in (False, True, False)]
        hanging = pool.visit({"breaks": "get_reward hangs"})
        await hanging.begin()
        judging = asyncio.create_task(hanging.end(judged=True))
        await asyncio.sleep(0.05)
        judging.cancel()
        hanging.abandon()
        return [*made, await abandoned(in_call=False)]

    assert run(all_three()) == [1, 1, 2, 3]


@pytest.mark.spec("K13")
def test_a_reset_that_hangs_holds_nobody_up_and_all_threads_held_end_the_run():
    pool = pool_of("Failing", seconds=0.2, num_threads=2)

    async def hang() -> None:
        with pytest.raises(Broken, match="did not return within"):
            await pool.visit({"breaks": "reset hangs"}).begin()

    async def one_then_both() -> None:
        hanging = asyncio.create_task(hang())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(pool.visit({}).begin(), 0.1)
        await hanging
        await hang()
        with pytest.raises(RuntimeError, match=r"all 2 threads .* are held .*: Failing.reset \(2 times\)"):
            await pool.visit({}).begin()

    run(one_then_both())


def test_where_no_clock_may_decide_what_takes_too_long_ends_the_run():
    pool = pool_of("Failing", seconds=0.1, clock_decides=False)
    with pytest.raises(EnvironmentFault, match=r"Failing.reset did not return within 0.1 s .*In a reproducible run"):
        run(pool.visit({"breaks": "reset hangs"}).begin())


def test_a_factory_that_gives_one_object_to_two_rollouts_is_refused():
    pool = pool_of("same_game")

    async def two() -> None:
        await pool.visit({"target": 1}).begin()
        await pool.visit({"target": 2}).begin()

    with pytest.raises(EnvironmentFault, match='same_game" gave the same Game twice; every rollout needs an instance'):
        run(two())


def test_a_factory_that_makes_another_class_is_refused():
    pool = pool_of("quiet_or_game")  # looking it over has made the first one
    with pytest.raises(EnvironmentFault, match="made a Game where it was to make a Quiet"):
        run(pool.visit({"target": 1}).begin())


def test_state_that_instances_share_is_named_once(caplog: pytest.LogCaptureFixture):
    pool = pool_of("Sharing")

    async def three() -> None:
        for _ in range(3):
            await pool.visit({}).begin()

    run(three())
    told = [message.partition(":")[0] for message in caplog.messages]
    assert told == ["instances of Sharing share seen", "instances of Sharing share past"]
    assert shared_by(worlds.Game(), worlds.Game()) == []


def test_half_a_surrogate_pair_of_an_environment_is_a_question_mark_to_the_model_and_in_reasons():
    pool = pool_of("Failing")
    assert run(pool.visit({"breaks": "half a pair"}).begin()) == "a?"
    assert words_of(KeyError("level")) == "KeyError: 'level'"
    assert words_of(ValueError("a\ud800")) == "ValueError: a?"
