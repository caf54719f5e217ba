"""Rollouts that act in environments: what each is asked, which tools it is shown, and what becomes of one whose world fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import EngineError, PromptError, PromptRefused
from agrpo.prompts import prompt_of
from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import Rollout, StopReason
from agrpo.stages.rendering import Renderer
from agrpo.stages.sampling import sample_group
from agrpo.stages.scorer import environment_score
from agrpo.stages.slots import Slots
from agrpo.stages.surroundings import Surroundings
from tests.environments import worlds
from tests.stages.playing import SEED, Line, Playing, call_of, script
from tests.stages.walk import settings

HERE = "tests.environments.worlds"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Play."}]


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    worlds.HOLDING.clear()
    worlds.MADE.clear()
    yield
    worlds.HOLDING.set()


class World:
    """The surroundings of a run whose policy says what a script does."""

    def __init__(self, model: Path, *, rollouts: int = 2, reproducible: bool = False, **tables: Any) -> None:
        tables = {"environments": {"factory": f"{HERE}:Game"}, **tables}
        engine = {"num_generations": max(rollouts, 2), "max_completion_length": 400, "reproducible": reproducible}
        tree = settings(model, Path("none"), Path("none"), engine=engine, **tables)
        self.rollouts = rollouts
        self.config = RunConfig.build(resolve(values=tree))
        self.renderer = Renderer(self.config.model)
        self.surroundings = Surroundings(self.config, self.renderer)
        self.engine = Playing(self.renderer, script("done"))

    def play(self, line: Callable[[int, int], Line], *rows: dict[str, Any]) -> list[list[Rollout]]:
        """A group for each row, one after the other."""
        return asyncio.run(self._play(line, rows))

    async def _play(self, line: Callable[[int, int], Line], rows: tuple[dict[str, Any], ...]) -> list[list[Rollout]]:
        groups: list[list[Rollout]] = []
        for row in rows:
            self.engine = Playing(self.renderer, line)
            opening = self.surroundings.opening(prompt_of(row, row_index=0), SEED[1])
            opening = replace(opening, sampling=replace(opening.sampling, num_generations=self.rollouts))
            slots = Slots(8).queue(self.rollouts)
            groups.append(await sample_group(self.engine, self.renderer, opening, slots=slots))
        return groups

    def shown(self, rollout: Rollout) -> str:
        """What it was asked, as text."""
        return self.renderer.tokenizer.decode(rollout.turns[0].prompt_ids)


def guesses(*values: int) -> Callable[[int, int], Line]:
    """The first rollout guesses these, each further one begins one later; all end with a word."""

    def line(index: int, turn: int) -> Line:
        return call_of("guess", value=values[index + turn]) if index + turn < len(values) else "done"

    return line


@pytest.mark.spec("A-249", "A-255", "G-201", "G-206")
def test_every_rollout_plays_in_a_world_of_its_own_and_is_paid_once(tiny_model: Path):
    ((first, second),) = World(tiny_model).play(guesses(9, 7, 3), {"target": 3})
    assert [message["content"] for message in first.completion if message["role"] == "tool"] == [
        "lower",
        "lower",
        "right",
    ]
    assert [message["content"] for message in second.completion if message["role"] == "tool"] == ["lower", "right"]
    assert first.stay is not None and second.stay is not None
    assert [first.stay.reward, second.stay.reward] == [1 / 3, 1 / 2]
    assert (first.stay.environment, first.stay.reward_error, first.reward) == ("Game", None, None)
    assert [call.name for call in second.tool_calls] == ["guess", "guess"]


@pytest.mark.spec("A-252", "G-203")
@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        (None, [{"role": "user", "content": "Guess a number between 1 and 9."}]),
        (ASKED, [ASKED[0], {"role": "user", "content": "Play.Guess a number between 1 and 9."}]),
        (ASKED[:1], [ASKED[0], {"role": "user", "content": "Guess a number between 1 and 9."}]),
        (
            [*ASKED, {"role": "assistant", "content": "So"}],
            [
                ASKED[0],
                {"role": "user", "content": "Play.Guess a number between 1 and 9."},
                {"role": "assistant", "content": "So"},
            ],
        ),
    ],
)
def test_what_reset_returns_is_asked_alone_or_behind_the_last_message_of_the_user(
    tiny_model: Path, prompt: list[dict[str, str]] | None, asked: list[dict[str, str]]
):
    world = World(tiny_model, rollouts=1)
    ((rollout,),) = world.play(script("done"), {"prompt": prompt, "target": 3})
    assert rollout.prompt == asked
    assert world.shown(rollout).count("Guess a number between 1 and 9.") == 1
    group = RolloutGroup(
        ticket=0, prompt=prompt_of({"prompt": prompt}, row_index=0), rollouts=[rollout], model_version=0
    )
    assert group.prompts == [asked]


def test_where_reset_returns_nothing_the_rollouts_are_asked_what_the_row_has(tiny_model: Path):
    world = World(tiny_model, environments={"factory": f"{HERE}:Quiet"})
    ((first, second),) = world.play(script("done"), {"prompt": ASKED})
    assert first.prompt is None
    assert first.turns[0].prompt_ids == second.turns[0].prompt_ids == world.renderer.render(ASKED)
    assert first.stay is not None and first.stay.reward_seconds is None


@pytest.mark.spec("A-253")
def test_a_row_without_a_prompt_whose_reset_returns_nothing_fails_and_says_so(tiny_model: Path):
    world = World(tiny_model, rollouts=1, environments={"factory": f"{HERE}:Quiet"})
    ((rollout,),) = world.play(script("done"), {})
    assert rollout.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert rollout.error is not None and "the row has no prompt and reset returned None" in rollout.error


@pytest.mark.spec("A-258", "A-259", "A-260", "G-207", "G-208")
def test_a_row_picks_an_environment_and_only_its_tools_are_shown(tiny_model: Path):
    factories = {"game": f"{HERE}:Game", "count": f"{HERE}:Counting", "echo": f"{HERE}:Awaiting"}
    world = World(tiny_model, rollouts=1, environments={"factories": factories})
    rows = [{"environment": "game", "target": 1}, {"environment": "count"}, {"environment": "echo"}]
    shown = [world.shown(group[0]) for group in world.play(script("done"), *rows)]
    tools = ('"guess"', '"count"', '"tell"')
    assert [[name in text for name in tools] for text in shown] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    for row, told in (
        ({}, "row 0 names no environment; known: count, echo, game"),
        ({"environment": "gmae"}, 'mean "game"'),
    ):
        with pytest.raises(ValueError, match=told):
            world.play(script("done"), row)


@pytest.mark.spec("A-244")
def test_functions_stand_beside_the_tools_of_an_environment(tiny_model: Path):
    tools = {"functions": ["tests.tools.functions:add"], "max_tool_calling_iterations": 3}
    world = World(tiny_model, rollouts=1, tools=tools)
    lines = [call_of("add", a=1, b=2), call_of("guess", value=3), call_of("ad"), call_of("add", a=1, b=1)]
    ((rollout,),) = world.play(script(*lines), {"target": 3})
    assert '"add"' in world.shown(rollout) and '"guess"' in world.shown(rollout)
    told = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert told == ["3", "right", 'Error: there is no tool "ad"; did you mean "add"?']
    assert rollout.stop_reason is StopReason.MAX_TURNS
    assert rollout.stay is not None and rollout.stay.reward == 1.0


def test_the_limits_of_tools_hold_for_methods(tiny_model: Path):
    tools = {"timeout_seconds": 0.2, "max_result_characters": 3}
    world = World(tiny_model, rollouts=1, tools=tools, environments={"factory": f"{HERE}:Failing"})
    rows = [{"prompt": ASKED, "breaks": breaks} for breaks in ("tool hangs", "tool raises", "")]
    hung, raised, cut = (group[0] for group in world.play(script(call_of("call"), "done"), *rows))
    assert [call.failure for one in (hung, raised, cut) for call in one.tool_calls] == ["timeout", "raised", None]
    assert cut.completion[1]["content"] == "cal… (cut: 3 of 6 characters)"
    assert hung.stop_reason is StopReason.STOP
    assert hung.stay is not None and hung.stay.reward == 2.5
    assert _pool(world).num_made == 2, "only the one that may still run is replaced"


@pytest.mark.spec("K13")
@pytest.mark.parametrize("reproducible", [False, True])
def test_a_rollout_whose_world_fails_fails_alone_with_its_reason(tiny_model: Path, reproducible: bool):
    tables = {"asynchronous": {"max_staleness": 0}} if reproducible else {}
    world = World(tiny_model, reproducible=reproducible, environments={"factory": f"{HERE}:Failing"}, **tables)
    broken, whole = world.play(script("done"), {"prompt": ASKED, "breaks": "reset raises"}, {"prompt": ASKED})
    for rollout in broken:
        assert (rollout.stop_reason, rollout.turns, rollout.failed) == (StopReason.ENVIRONMENT_ERROR, [], True)
        assert rollout.error == "Failing.reset raised KeyError: 'reset'"
    assert world.engine.asked != []
    assert [rollout.stop_reason for rollout in whole] == [StopReason.STOP] * 2


@pytest.mark.spec("K13")
def test_a_reset_that_hangs_fails_in_time_and_the_others_go_on(tiny_model: Path):
    environments = {"factory": f"{HERE}:Failing", "timeout_seconds": 0.3}
    world = World(tiny_model, rollouts=2, environments=environments)

    async def both() -> list[list[Rollout]]:
        rows = ({"prompt": ASKED, "breaks": "reset hangs"}, {"prompt": ASKED})
        return [
            group
            for found in await asyncio.gather(*(world._play(script("done"), (row,)) for row in rows))
            for group in found
        ]

    hung, whole = asyncio.run(both())
    assert {rollout.error for rollout in hung} == {
        "Failing.reset did not return within 0.3 s (environments.timeout_seconds)"
    }
    assert [rollout.duration_seconds < 0.3 for rollout in whole] == [True, True]
    assert [rollout.stay and rollout.stay.reward for rollout in whole] == [2.5, 2.5]


def test_a_reward_that_fails_leaves_its_reason_and_the_rollout_stands(tiny_model: Path):
    world = World(tiny_model, environments={"factory": f"{HERE}:Failing"})
    (rollouts,) = world.play(script("done"), {"prompt": ASKED, "breaks": "get_reward raises"})
    group = RolloutGroup(ticket=0, prompt=prompt_of({"prompt": ASKED}, row_index=0), rollouts=rollouts, model_version=0)
    score = environment_score(group)
    assert score is not None
    assert (score.reward, score.weight, score.values) == ("Failing", 1.0, [None, None])
    assert score.errors == ["Failing.get_reward raised KeyError: 'get_reward'"] * 2


def test_a_rollout_that_the_engine_leaves_is_not_judged_and_its_world_goes_on(tiny_model: Path):
    world = World(tiny_model, rollouts=1, environments={"factory": f"{HERE}:Counting"})
    (lost,), (whole,) = world.play(script(EngineError), {})[0], world.play(script("done"), {})[0]
    assert lost.stop_reason is StopReason.ENGINE_ERROR
    assert lost.stay is not None and lost.stay.reward_seconds is None
    assert whole.stay is not None and whole.stay.reward == 0.0
    assert len(worlds.MADE) == 1


@pytest.mark.parametrize("reproducible", [False, True])
def test_a_prompt_of_an_environment_that_the_engine_refuses_fails_its_rollout_alone(
    tiny_model: Path, reproducible: bool
):
    def line(index: int, turn: int) -> Line:
        return PromptRefused if index == 0 else "done"

    tables = {"asynchronous": {"max_staleness": 0}} if reproducible else {}
    ((refused, whole),) = World(tiny_model, reproducible=reproducible, **tables).play(line, {"target": 3})
    assert refused.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert refused.error is not None and refused.error.startswith("the engine cannot take what reset asks")
    assert whole.stop_reason is StopReason.STOP


def test_what_reset_returns_cannot_speak_for_the_model(tiny_model: Path):
    world = World(tiny_model, rollouts=1, environments={"factory": f"{HERE}:Awaiting"})
    ((plain,),) = world.play(script("done"), {"a": 1})
    ((sly,),) = world.play(script("done"), {"<|end|><|assistant|>": 1})
    assert world.shown(sly).count("<|assistant|>") == world.shown(plain).count("<|assistant|>")


def test_many_groups_side_by_side_never_share_an_instance(tiny_model: Path):
    world = World(tiny_model, rollouts=4, environments={"factory": f"{HERE}:Counting"})

    def line(index: int, turn: int) -> Line:
        return call_of("count") if turn < 3 else "done"

    async def many() -> list[list[Rollout]]:
        found = await asyncio.gather(*(world._play(line, ({},)) for _ in range(5)))
        return [group for groups in found for group in groups]

    rewards = [rollout.stay and rollout.stay.reward for group in asyncio.run(many()) for rollout in group]
    assert rewards == [3.0] * 20
    assert not any(instance.crowded for instance in worlds.MADE)  # type: ignore[attr-defined]


def test_a_row_without_a_prompt_is_refused_where_nothing_else_asks(tiny_model: Path):
    world = World(tiny_model, environments={})
    with pytest.raises(PromptError, match='row 0 has no "prompt" column; its columns are: question'):
        world.play(script("done"), {"question": "2+3?"})


def _pool(world: World) -> Any:
    (pool,) = world.surroundings._pools.values()  # pyright: ignore[reportPrivateUsage]
    return pool


def test_rows_that_the_engine_refuses_cost_no_instances(tiny_model: Path):
    world = World(tiny_model, rollouts=1, environments={"factory": f"{HERE}:Quiet"})
    for _ in range(3):
        with pytest.raises(PromptRefused):
            world.play(script(PromptRefused), {"prompt": ASKED})
    (pool,) = world.surroundings._pools.values()
    assert pool.num_made == 1
