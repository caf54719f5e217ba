"""A loop of the user's, driven without a run: what is asked of the engine, what is refused, how it is found."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agrpo.config import RolloutLoopSection, RunConfig, resolve
from agrpo.errors import ConfigError, DeadlineExceeded, EngineError, HookError, PromptRefused
from agrpo.prompts import PromptOrder
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, Stay, StopReason
from agrpo.records.score import ScoredGroup
from agrpo.records.seeds import derive_seed
from agrpo.rollout_loop import AsyncRolloutLoop
from agrpo.rollout_loop.finding import HOOKS, check_rollout_loop, loop_class
from agrpo.runs.checks import check
from agrpo.stages.advantage_hook import AdvantageHook
from agrpo.stages.rendering import Renderer
from agrpo.stages.rollout_hooks import RolloutHooks
from agrpo.stages.slots import Slots
from tests.environments import worlds
from tests.stages import loops
from tests.stages.playing import QUESTION, SEED, Line, Playing, call_of, script
from tests.stages.walk import settings

PROMPT = Prompt(id="p", messages=QUESTION, row_index=5)
CLIP = {"loss": {"name": "clip"}}
TOOLS = {"functions": ["tests.tools.functions:add", "tests.tools.functions:divide"]}


class Played:
    """Rollouts of a loop of the tests, of ticket 7, over an engine that says what a script does."""

    def __init__(self, model: Path, loop: str | None, line: Callable[[int, int], Line], **tables: Any) -> None:
        self.prompt = replace(PROMPT, facts=tables.pop("facts", {}))
        path = loop if loop is None or ":" in loop else f"tests.stages.loops:{loop}"
        section = {"path": path, "settings": tables.pop("loop_settings", {})}
        engine = {
            "num_generations": tables.pop("rollouts", 2),
            "max_completion_length": 100,
            **tables.pop("engine", {}),
        }
        tools = {**TOOLS, **tables.pop("tools", {})}
        tree = settings(model, model, model, rollout_loop=section, tools=tools, engine=engine, **{**CLIP, **tables})
        tree["prompts"] = {"name": "reasoning_gym", "dataset": "chain_sum"}
        self.config = RunConfig.build(resolve(values=tree))
        self.renderer = Renderer(self.config.model)
        self.engine = Playing(self.renderer, line)
        self.hooks = RolloutHooks(self.config, self.renderer, self.engine)

    def rollouts(self) -> list[Rollout]:
        return asyncio.run(self._sample())

    async def _sample(self) -> list[Rollout]:
        slots = Slots(8).queue(self.config.sampling.num_generations)
        return await self.hooks.sample(self.prompt, SEED[1], 3, slots)


def scripted(index: int, turn: int) -> Line:
    return call_of("add", a=index, b=turn) if turn <= index else f"{index}"


@pytest.mark.spec("A-216", "A-218")
@pytest.mark.parametrize("reproducible", [False, True])
def test_turns_that_pass_through_a_hook_are_those_of_agrpos_own_loop(tiny_model: Path, reproducible: bool):
    engine = {"reproducible": reproducible}
    own, hooked = (Played(tiny_model, name, scripted, rollouts=3, engine=engine) for name in (None, "Passing"))
    expected, found = own.rollouts(), hooked.rollouts()
    assert [len(rollout.turns) for rollout in found] == [2, 3, 4]
    assert [one.turns for one in found] == [one.turns for one in expected]
    assert [one.completion for one in found] == [one.completion for one in expected]
    assert [one.tool_call_count for one in found] == [one.tool_call_count for one in expected]

    def requests(played: Played) -> list[Any]:
        return sorted((each for asked in played.engine.asked for each in asked), key=lambda each: each.seed)

    assert requests(hooked) == requests(own)


def test_every_turn_of_a_generate_one_has_a_seed_of_its_own_place(tiny_model: Path):
    played = Played(tiny_model, "Twice", script("9", "9"))
    assert [rollout.seed for rollout in played.rollouts()] == [derive_seed(*SEED, index, 0) for index in (0, 1)]
    seeds = [request.seed for asked in played.engine.asked for request in asked]
    assert sorted(seeds) == sorted(derive_seed(*SEED, index, turn) for index in (0, 1) for turn in (0, 1))


def test_turns_asked_at_once_are_of_their_own_rollout_and_numbered_as_they_are_begun(tiny_model: Path):
    played = Played(tiny_model, "AtOnce", lambda index, turn: f"{index} {turn}")
    for index, rollout in enumerate(played.rollouts()):
        texts = [played.renderer.text(turn.output_ids) for turn in rollout.turns]
        assert texts == [f"{index} {turn}" for turn in range(3)]
        assert [turn.prompt_ids[-1] for turn in rollout.turns] == [0, 1, 2]


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("no_turns", "gave no turns; list every TurnRecord"),
        ("one_left_out", "asked for 1 turns and left 1 of them out of Rollout.turns"),
        ("other_type", "gave str; expected agrpo.Rollout"),
        ("infinite_reward", "set the reward inf; expected a finite number"),
        ("no_logprobs", "a turn has 2 output tokens and 0 sampler log-probs"),
        ("short_mask", r"a turn has 2 output tokens and the output_mask \[1\]"),
        ("no_json", "gave completion = .* expected a list of messages, each with a role and a content"),
        ("text", "gave completion = 'the answer'; expected a list of messages"),
        ("texts", "gave completion = .*; expected a list of messages"),
        ("number", "gave completion = .*; expected a list of messages"),
        ("no_ids", "gave completion_ids = None; expected a list of token ids"),
        ("text_ids", "gave completion_ids = 'abc'; expected a list of token ids"),
        ("calls", "gave tool_calls = .*; expected a list of ToolCall"),
        ("reason", "gave stop_reason = 'stop'; expected an agrpo.records.rollout.StopReason"),
        ("other_version", r"gave a turn sampled by the versions \[99\]; this rollout's are \[3\]"),
        ("few_versions", "gave a turn of 2 output tokens and 1 output_versions; expected one for each"),
        ("no_time", "gave a turn with duration_seconds = nan; expected seconds, 0 or more, or None"),
        ("before", "gave a turn with begun_seconds = -0.5; expected seconds, 0 or more, or None"),
        (
            "nan",
            r"of which turns\[1\].output_log_probs\[0\] is nan; expected a log-prob in nats, finite and not above 0",
        ),
        ("infinite", r"of which turns\[1\].output_log_probs\[1\] is -inf; expected a log-prob in nats, finite"),
        ("above_0", r"of which turns\[1\].output_log_probs\[0\] is 5.0; expected a log-prob in nats, finite"),
        ("log_prob_text", r"of which turns\[1\].output_log_probs\[0\] is '-1'; expected a log-prob"),
        ("unknown_id", r"of which turns\[1\].output_ids\[1\] is 99999; expected a token id from 0 to \d+"),
        ("negative_id", r"of which turns\[1\].prompt_ids\[0\] is -1; expected a token id from 0 to \d+"),
        ("unknown_completion", r"of which completion_ids\[0\] is 99999; expected a token id"),
        ("unknown_candidate", r"of which turns\[1\].output_sampling_mask\[1\]\[0\] is -1; expected a token id"),
        (
            "unknown_top",
            r"of which turns\[1\].output_sampler_logprobs\[1\] is \{99999: -1.0\}; expected a dict of token",
        ),
        ("nan_top", r"of which turns\[1\].output_sampler_logprobs\[0\] is \{9: nan\}; expected a dict of token"),
        ("text_reward", "set the reward '1'; expected a finite number, or None"),
        ("raises", "raised KeyError: 'answer'. Mend the hook, then `agrpo resume` this run"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_rollout(tiny_model: Path, slip: str, told: str):
    played = Played(tiny_model, "Careless", script("9"), loop_settings={"slip": slip})
    with pytest.raises(HookError, match=rf"loops:Careless: generate_one, rollout \d of ticket 7 \(row 5\),? .*{told}"):
        played.rollouts()


@pytest.mark.parametrize("loop", ["Twice", "Passing"])
def test_an_environment_is_never_left_out(tiny_model: Path, loop: str):
    def line(index: int, turn: int) -> Line:
        return call_of("guess", value=index) if turn == 0 else "9"

    world = {"factory": "tests.environments.worlds:Game"}
    played = Played(tiny_model, loop, line, environments=world, facts={"target": 1})
    if loop == "Twice":
        with pytest.raises(HookError, match=r"left its environment out; .* call super\(\).generate_one"):
            played.rollouts()
    else:
        stays = [rollout.stay for rollout in played.rollouts()]
        assert [stay and (stay.environment, stay.reward) for stay in stays] == [("Game", 0.0), ("Game", 1.0)]


def test_what_a_hook_asks_in_place_of_the_row_is_asked_and_recorded(tiny_model: Path):
    plain = Played(tiny_model, "Passing", scripted, loop_settings={"tools": 9}).rollouts()
    for rollout, other in zip(
        Played(tiny_model, "Told", scripted, loop_settings={"tools": 9}).rollouts(), plain, strict=True
    ):
        assert rollout.prompt == [{"role": "system", "content": "Be short."}, *QUESTION]
        assert other.prompt is None
        assert len(rollout.turns[0].prompt_ids) > len(other.turns[0].prompt_ids)
        assert rollout.turns[1].prompt_ids[: len(rollout.turns[0].prompt_ids)] == rollout.turns[0].prompt_ids


def test_other_tools_than_the_runs_are_refused(tiny_model: Path):
    with pytest.raises(HookError, match=r"gave 1 tools to super\(\).generate_one, which calls the 2 of the run"):
        Played(tiny_model, "Told", scripted, loop_settings={"tools": 1}).rollouts()


def test_a_rollout_made_anew_keeps_what_its_environment_paid(tiny_model: Path):
    def line(index: int, turn: int) -> Line:
        return call_of("guess", value=1) if turn == 0 else "9"

    world = {"factory": "tests.environments.worlds:Game"}
    kept, given_up = Played(tiny_model, "MadeAnew", line, environments=world, facts={"target": 1}).rollouts()
    assert kept.stay is not None and (kept.stay.environment, kept.stay.reward) == ("Game", 1.0)
    assert kept.prompt is not None and "Guess a number" in str(kept.prompt[-1]["content"])
    assert given_up.stay is not None and given_up.stay.environment == "Game"
    assert (given_up.turns, given_up.stop_reason) == ([], StopReason.ENGINE_ERROR)


def test_a_turn_without_the_likely_tokens_that_the_loss_reads_is_refused(tiny_model: Path):
    with pytest.raises(HookError, match="a turn to train without output_sampler_logprobs, which the run's loss reads"):
        Played(tiny_model, "Twice", script("9", "9"), loss={"name": "score_centering"}).rollouts()


def test_what_the_engine_does_not_answer_is_a_rollout_that_failed(tiny_model: Path):
    def line(index: int, turn: int) -> Line:
        return EngineError if (index, turn) == (1, 1) else "9"

    fine, broken = Played(tiny_model, "Twice", line).rollouts()
    assert (fine.stop_reason, fine.reward, len(fine.turns)) == (StopReason.STOP, 2.0, 2)
    assert (broken.stop_reason, broken.reward, broken.turns) == (StopReason.ENGINE_ERROR, None, [])
    assert broken.error == "turn 1 of rollout 1"


def test_a_prompt_that_the_engine_refuses_at_once_is_refused(tiny_model: Path):
    with pytest.raises(PromptRefused):
        Played(tiny_model, "Twice", script(PromptRefused)).rollouts()


def test_a_turn_that_nothing_of_could_be_trained_fails_its_rollout(tiny_model: Path):
    rollouts = Played(tiny_model, "GivesUp", script("9")).rollouts()
    assert [rollout.stop_reason for rollout in rollouts] == [StopReason.ENGINE_ERROR] * 2
    assert rollouts[0].error is not None
    assert "turn 1 begins with 16384 tokens, and no more than step.micro_tokens = 16384" in rollouts[0].error


def test_generate_one_turn_outside_of_a_rollout_is_refused(tiny_model: Path):
    loop = AsyncRolloutLoop(config=Played(tiny_model, None, scripted).config, model_name="m", processing_class=None)
    with pytest.raises(HookError, match="generate_one_turn was called outside"):
        asyncio.run(loop.generate_one_turn([1]))


def test_a_filter_is_given_the_whole_row_and_says_yes_or_no(tiny_model: Path):
    loops.CALLED.clear()
    rows = [{"prompt": [{"role": "user", "content": f"{n}?"}], "level": n} for n in range(4)]
    order = PromptOrder(rows, seed=0, shuffle=False)
    hooks = Played(tiny_model, "EvenRowsThenAll", scripted).hooks
    told = [hooks.leaves_out(order, number, order.prompt(number)) for number in range(6)]
    left_out = "tests.stages.loops:EvenRowsThenAll: filter_prompt leaves row {} out in epoch 0"
    assert told == [None, left_out.format(1), None, left_out.format(3), None, None]
    assert loops.CALLED == [(row, rows[row], epoch) for row, epoch in [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1)]]


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (
            "FilterRaises",
            r"FilterRaises: filter_prompt, row 1 in epoch 2, raised KeyError: 'level'. Mend the hook, then",
        ),
        ("FilterSaysNothing", r"FilterSaysNothing: filter_prompt, row 1, gave None; expected True or False"),
    ],
)
def test_a_filter_that_fails_names_its_row(tiny_model: Path, loop: str, told: str):
    order = PromptOrder([{"prompt": QUESTION}, {"prompt": QUESTION}], seed=0, shuffle=False)
    with pytest.raises(HookError, match=told):
        Played(tiny_model, loop, scripted).hooks.leaves_out(order, 5, order.prompt(5))


@pytest.mark.spec("A-209")
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("tests.stages.nothing:Loop", 'there is no module "tests.stages.nothing"'),
        ("tests.stages.loops:Plane", r'has no "Plane"; did you mean "Plain"\?'),
        ("tests.stages.loops:NoLoop", "is the class NoLoop; expected a subclass of agrpo.AsyncRolloutLoop"),
        ("tests.stages.loops:CALLED", "is a list; expected a subclass"),
        ("tests.stages.loops:SyncTurn", "generate_one_turn has to be written with async def"),
        (
            "tests.stages.loops:OtherArguments",
            r"filter_prompt\(self, row\) is called as filter_prompt\(self, row_index, ",
        ),
        ("tests.stages.loops:OtherNames", r"filter_prompt\(self, index, row, epoch\) is called as"),
        ("tests.stages.loops:NoMethod", "compute_advantages is a int; expected a method"),
        ("tests.stages.loops:OwnInit", r"__init__\(self, model\) has to take config, model_name and processing_class"),
    ],
)
def test_a_loop_that_cannot_be_used_is_refused_before_anything_starts(tiny_model: Path, path: str, told: str):
    section = RolloutLoopSection(path=path)
    with pytest.raises(HookError, match=told):
        loop_class(section)
    with pytest.raises(HookError, match=told):
        Played(tiny_model, path, scripted)
    (problem,) = check_rollout_loop(section)
    assert problem.startswith(f'rollout_loop.path: "{path}"')


def test_check_finds_a_loop_that_cannot_be_used(tiny_model: Path):
    config = replace(Played(tiny_model, None, scripted).config, rollout_loop=RolloutLoopSection(path="nowhere:Loop"))
    (problem,) = [problem for problem in check(config) if problem.startswith("rollout_loop.path: ")]
    assert 'there is no module "nowhere"' in problem


def test_a_hook_may_take_an_argument_of_its_own_with_a_default():
    assert check_rollout_loop(RolloutLoopSection(path="tests.stages.loops:FurtherArgument")) == []


def test_settings_of_no_class_are_refused(tiny_model: Path):
    with pytest.raises(ConfigError, match="values for a class or a function of yours, and none is named"):
        Played(tiny_model, None, scripted, loop_settings={"least": 1})


@pytest.mark.spec("A-211")
def test_a_loop_reads_the_runs_settings_its_own_and_the_tokenizer(tiny_model: Path):
    played = Played(tiny_model, "Plain", scripted, loop_settings={"least": 1})
    loop = loops.Plain(config=played.config, model_name=str(tiny_model), processing_class=played.renderer.tokenizer)
    assert (loop.settings.least, loop.config.step.groups, loop.tokenizer.eos_token) == (1, 2, "<|end|>")
    with pytest.raises(AttributeError, match=r'\[rollout_loop.settings\] has no leest; did you mean "least"\?'):
        assert loop.settings.leest


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        ("short", r"gave float64 \[1\]; expected a numpy array of 2 floats"),
        ("nan", r"gave \[nan, nan\] for the rewards \[1.0, nan\]; expected a finite number wherever there is a reward"),
        ("list", "gave list; expected a numpy array of 2 floats"),
        ("raises", "raised IndexError: list index out of range. Mend the hook"),
    ],
)
def test_advantages_that_cannot_be_trained_are_refused_with_their_ticket(tiny_model: Path, gives: str, told: str):
    hook = AdvantageHook.of(Played(tiny_model, "OddAdvantages", scripted, loop_settings={"gives": gives}).config)
    assert hook is not None
    rollout = Rollout(completion=[], completion_ids=[], turns=[])
    group = RolloutGroup(ticket=4, prompt=PROMPT, rollouts=[rollout, rollout], model_version=0)
    scored = ScoredGroup(ticket=4, prompt_id="p", model_version=0, rewards=[1.0, float("nan")], scores=[])
    with pytest.raises(HookError, match=rf"compute_advantages, ticket 4 \(row 5\), {told}"):
        hook([scored], {4: group})


@pytest.mark.spec("A-235")
def test_a_hook_is_told_who_paid_what(tiny_model: Path):
    world = {"factory": "tests.environments.worlds:Game"}
    hook = AdvantageHook.of(Played(tiny_model, "Paid", scripted, environments=world).config)
    assert hook is not None
    rollout = Rollout(completion=[], completion_ids=[], turns=[], reward=0.25)
    stays = [Stay(environment="Game", reward=0.5), Stay(environment="Game", reward_error="lost"), None]
    group = RolloutGroup(
        ticket=4, prompt=PROMPT, rollouts=[replace(rollout, stay=stay) for stay in stays], model_version=0
    )
    scored = ScoredGroup(ticket=4, prompt_id="p", model_version=0, rewards=[0.75, 0.25, 0.25], scores=[])
    loops.CALLED.clear()
    assert hook([scored], {4: group})[4].tolist() == [0.5, 0.0, 0.0]
    assert loops.CALLED == [([(worlds.Game, 0.5), None, None], [0.25] * 3)]


def test_advantages_of_rollouts_without_a_reward_are_0(tiny_model: Path):
    hook = AdvantageHook.of(Played(tiny_model, "Halved", scripted).config)
    assert hook is not None
    rollout = Rollout(completion=[], completion_ids=[], turns=[])
    group = RolloutGroup(ticket=4, prompt=PROMPT, rollouts=[rollout] * 3, model_version=0)
    scored = ScoredGroup(ticket=4, prompt_id="p", model_version=0, rewards=[1.0, float("nan"), 3.0], scores=[])
    found = hook([scored], {4: group})[4]
    assert (found.tolist(), found.dtype) == ([-0.5, 0.0, 0.5], np.float32)


def test_a_setup_that_does_not_end_is_given_up_by_name_and_close_runs_still(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
):
    loops.CALLED.clear()
    stop, tools = {"max_steps": 1, "stall_seconds": 0.2}, {"timeout_seconds": 0.1}
    played = Played(tiny_model, "Forever", scripted, stop=stop, tools=tools)
    told: list[str] = []

    async def use() -> None:
        async with played.hooks.in_use(threading.Event(), lambda what, _: told.append(what)):
            raise AssertionError("it was never set up")

    with pytest.raises(DeadlineExceeded, match=r"for tests.stages.loops:Forever: setup; the limit is 0 s"):
        asyncio.run(use())
    assert told == ["tests.stages.loops:Forever: setup"]
    assert loops.CALLED == [("close",)]
    assert "Forever: close raised OSError: nothing to close" in caplog.text


def test_the_error_of_a_close_is_raised_where_nothing_else_failed(tiny_model: Path):
    played, stopped = Played(tiny_model, "Forever", scripted), threading.Event()
    stopped.set()

    async def use() -> None:
        async with played.hooks.in_use(stopped, lambda *_: None):
            pass

    with pytest.raises(HookError, match="Forever: close raised OSError"):
        asyncio.run(use())


def test_the_hooks_are_the_documented_ones():
    assert all(hasattr(AsyncRolloutLoop, hook) for hook in HOOKS)
    own = [name for name, value in vars(AsyncRolloutLoop).items() if callable(value) and not name.startswith("_")]
    assert own == list(HOOKS)


def test_the_loops_of_the_docs_work(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text("utf-8")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        (tmp_path / f"loop_of_docs_{number}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    levels = Played(tiny_model, "loop_of_docs_0:MyLoop", scripted, loop_settings={"epochs_per_level": 2})
    order = PromptOrder([{"prompt": QUESTION, "level": level} for level in (1, 2)], seed=0, shuffle=False)
    asked = [levels.hooks.leaves_out(order, number, order.prompt(number)) is None for number in range(6)]
    assert asked == [True, False, True, False, True, True]
    (rollout, _) = Played(tiny_model, "loop_of_docs_1:AsksAgain", script("9 and more", "9")).rollouts()
    assert [message["content"] for message in rollout.completion] == ["9 and more", "Are you sure?", "9"]
    assert (len(rollout.turns), rollout.reward, rollout.terminated) == (2, 0.1, True)
