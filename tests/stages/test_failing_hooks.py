"""What a hook gives or raises that no run can go on with: refused with the hook, the rollout and the place."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from agrpo.config import RolloutLoopSection
from agrpo.errors import HookError
from agrpo.prompts import PromptOrder
from agrpo.records.group import RolloutGroup
from agrpo.records.score import ScoredGroup
from agrpo.rollout_loop.finding import check_rollout_loop
from agrpo.stages.advantage_hook import AdvantageHook
from agrpo.stages.slots import Slots
from tests.stages.playing import QUESTION, SEED, script
from tests.stages.test_own_rollout import PROMPT, Played


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        ("nothing", "gave NoneType; expected agrpo.TurnRecord"),
        ("unknown_id", r"gave one of which turn.output_ids\[0\] is 99999; expected a token id from 0 to \d+"),
        ("nan", r"gave one of which turn.output_log_probs\[0\] is nan; expected a log-prob in nats, finite"),
    ],
)
def test_a_turn_that_cannot_be_trained_is_refused_with_the_hook_that_gave_it(tiny_model: Path, slip: str, told: str):
    played = Played(tiny_model, "CarelessTurn", script("9"), loop_settings={"slip": slip})
    with pytest.raises(
        HookError, match=rf"loops:CarelessTurn: generate_one_turn, rollout \d of ticket 7 \(row 5\), {told}"
    ):
        played.rollouts()


@pytest.mark.parametrize("token", [-1, 99999])
def test_generate_one_turn_is_asked_with_tokens_of_the_model_alone(tiny_model: Path, token: int):
    played = Played(tiny_model, "AsksWith", script("9"), loop_settings={"token": token})
    with pytest.raises(
        HookError, match=rf"generate_one_turn was given prompt_ids\[1\] is {token}; expected a token id from 0"
    ):
        played.rollouts()


def test_what_rounding_puts_above_0_is_0(tiny_model: Path):
    rollouts = Played(tiny_model, "Careless", script("9"), loop_settings={"slip": "rounded"}).rollouts()
    assert [rollout.turns[1].output_log_probs for rollout in rollouts] == [[0.0, -1.0]] * 2


@pytest.mark.parametrize("hook", ["filter_prompt", "generate_one", "setup", "close", "compute_advantages"])
@pytest.mark.parametrize(
    ("way", "told"), [("exit", "SystemExit: 3"), ("cancel", "CancelledError: "), ("interrupt", "KeyboardInterrupt: ")]
)
def test_a_hook_that_leaves_is_a_hook_that_fails(tiny_model: Path, hook: str, way: str, told: str):
    settings = {"hook": hook, "way": way}
    played = Played(tiny_model, "tests.stages.failing_loops:Leaves", script("9"), loop_settings=settings)
    order = PromptOrder([{"prompt": QUESTION}], seed=0, shuffle=False)

    async def use() -> None:
        async with played.hooks.in_use(threading.Event(), lambda *_: None):
            assert played.hooks.leaves_out(order, 0, order.prompt(0)) is None
            slots = Slots(8).queue(played.config.sampling.num_generations)
            rollouts = await played.hooks.sample(played.prompt, SEED[1], 3, slots)
            group = RolloutGroup(ticket=4, prompt=PROMPT, rollouts=rollouts, model_version=0)
            scored = ScoredGroup(ticket=4, prompt_id="p", model_version=0, rewards=[1.0] * len(rollouts), scores=[])
            advantages = AdvantageHook.of(played.config)
            assert advantages is not None and advantages([scored], {4: group})

    with pytest.raises(HookError, match=rf"failing_loops:Leaves: {hook}[ ,].*raised {told}"):
        asyncio.run(use())


def test_text_in_place_of_messages_is_the_hooks_fault_and_refuses_no_row(tiny_model: Path):
    told = r"generate_one, rollout \d of ticket 7 \(row 5\), gave '4 \+ 5 =' to super\(\).generate_one; expected a list of messages"
    with pytest.raises(HookError, match=told):
        Played(tiny_model, "tests.stages.failing_loops:AsksText", script("9")).rollouts()


def test_a_method_whose_name_is_all_but_a_hooks_is_refused():
    path = "tests.stages.failing_loops:Misspelt"
    (problem,) = check_rollout_loop(RolloutLoopSection(path=path))
    told = 'set_up is no hook and would never be called; did you mean "setup"? A method of your own may begin with an underscore'
    assert problem == f'rollout_loop.path: "{path}": {told}'
