"""Rollout loops of the tests: each overrides what its test is about."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from agrpo import AsyncRolloutLoop, Rollout, RolloutGroup, TurnRecord
from agrpo.records.rollout import StopReason

CALLED: list[tuple[Any, ...]] = []
"""What was called, in order; tests empty it first."""
LET_GO = threading.Event()
"""What `Blocked` waits for."""


class Plain(AsyncRolloutLoop):
    """Overrides nothing."""


class Passing(AsyncRolloutLoop):
    """Hands every turn on."""

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        return await super().generate_one_turn(prompt_ids)


class FirstTokenUntrained(AsyncRolloutLoop):
    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        turn = await super().generate_one_turn(prompt_ids)
        return replace(turn, output_mask=[0] + [1] * (len(turn.output_ids) - 1))


class Twice(AsyncRolloutLoop):
    """Asks, and asks again after its own answer; brings a reward that counts the tokens of the first one."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        render: Callable[..., Any] = self.tokenizer.apply_chat_template
        first = await self.generate_one_turn(render(prompt, add_generation_prompt=True, return_dict=False))
        asked_again = self.tokenizer.encode("<|user|>Sure?<|end|><|assistant|>", add_special_tokens=False)
        second = await self.generate_one_turn([*first.prompt_ids, *first.output_ids, *asked_again])
        texts = [self.tokenizer.decode(turn.output_ids) for turn in (first, second)]
        return Rollout(
            completion=[{"role": "assistant", "content": text} for text in texts],
            completion_ids=first.output_ids + second.output_ids,
            turns=[first, second],
            reward=float(len(first.output_ids)),
        )


class AtOnce(AsyncRolloutLoop):
    """Asks three turns side by side."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        turns = await asyncio.gather(*(self.generate_one_turn([5, 6, number]) for number in range(3)))
        ids = [token for turn in turns for token in turn.output_ids]
        return Rollout(completion=[], completion_ids=ids, turns=list(turns))


class FromElsewhere(AsyncRolloutLoop):
    """Every turn is its own: no engine is asked. `settings.whole`: so is the rollout, which else begins with a rest."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        if not self.settings.whole:
            await asyncio.sleep(self.settings.rest_seconds)
            return await super().generate_one(prompt, tools, group_id)
        turn = await self.generate_one_turn([5, 6])
        return Rollout(completion=[], completion_ids=turn.output_ids, turns=[turn])

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        return TurnRecord(prompt_ids=prompt_ids, output_ids=[9, 1], output_log_probs=[-0.5, -0.25])


class Careless(AsyncRolloutLoop):
    """Does in rollout 0 what `settings.slip` says."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        turn = await self.generate_one_turn([5, 6])
        whole = Rollout(completion=[{"role": "assistant", "content": "9"}], completion_ids=[], turns=[turn])
        own = TurnRecord(prompt_ids=[5], output_ids=[9, 1], output_log_probs=[-1.0, -1.0])
        slips: dict[str, Callable[[], Any]] = {
            "no_turns": lambda: replace(whole, turns=[]),
            "one_left_out": lambda: replace(whole, turns=[replace(turn, prompt_ids=[5])]),
            "other_type": lambda: "9",
            "infinite_reward": lambda: replace(whole, reward=float("inf")),
            "no_logprobs": lambda: replace(whole, turns=[replace(turn, output_log_probs=[])]),
            "short_mask": lambda: replace(whole, turns=[replace(turn, output_mask=[1])]),
            "no_json": lambda: replace(whole, completion=[{"role": "assistant", "content": {1, 2}}]),
            "text": lambda: replace(whole, completion=cast("Any", "the answer")),
            "texts": lambda: replace(whole, completion=cast("Any", ["the answer"])),
            "number": lambda: replace(whole, completion=[{"role": "assistant", "content": 7}]),
            "no_ids": lambda: replace(whole, completion_ids=cast("Any", None)),
            "text_ids": lambda: replace(whole, completion_ids=cast("Any", "abc")),
            "calls": lambda: replace(whole, tool_calls=cast("Any", [{"name": "add"}])),
            "reason": lambda: replace(whole, stop_reason=cast("Any", "stop")),
            "other_version": lambda: replace(whole, turns=[turn, replace(turn, output_versions=[99] * 2)]),
            "few_versions": lambda: replace(whole, turns=[turn, replace(turn, output_versions=[3])]),
            "no_time": lambda: replace(whole, turns=[replace(turn, duration_seconds=float("nan"))]),
            "before": lambda: replace(whole, turns=[replace(turn, begun_seconds=-0.5)]),
            "nan": lambda: replace(whole, turns=[turn, replace(own, output_log_probs=[float("nan"), -1.0])]),
            "infinite": lambda: replace(whole, turns=[turn, replace(own, output_log_probs=[-1.0, -float("inf")])]),
            "above_0": lambda: replace(whole, turns=[turn, replace(own, output_log_probs=[5.0, -1.0])]),
            "rounded": lambda: replace(whole, turns=[turn, replace(own, output_log_probs=[1e-6, -1.0])]),
            "log_prob_text": lambda: replace(
                whole, turns=[turn, replace(own, output_log_probs=cast("Any", ["-1", "-1"]))]
            ),
            "unknown_id": lambda: replace(whole, turns=[turn, replace(own, output_ids=[9, 99999])]),
            "negative_id": lambda: replace(whole, turns=[turn, replace(own, prompt_ids=[-1])]),
            "unknown_completion": lambda: replace(whole, completion_ids=[99999]),
            "unknown_candidate": lambda: replace(whole, turns=[turn, replace(own, output_sampling_mask=[[9], [-1]])]),
            "unknown_top": lambda: replace(
                whole, turns=[turn, replace(own, output_sampler_logprobs=[{9: -1.0}, {99999: -1.0}])]
            ),
            "nan_top": lambda: replace(
                whole, turns=[turn, replace(own, output_sampler_logprobs=[{9: float("nan")}, {1: -1.0}])]
            ),
            "text_reward": lambda: replace(whole, reward=cast("Any", "1")),
            "raises": lambda: {}["answer"],
        }
        return slips[self.settings.slip]()


class CarelessTurn(AsyncRolloutLoop):
    """Gives in place of a turn what `settings.slip` says."""

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        turn = await super().generate_one_turn(prompt_ids)
        slips: dict[str, Any] = {
            "nothing": None,
            "unknown_id": replace(turn, output_ids=[99999, 1]),
            "nan": replace(turn, output_log_probs=[float("nan"), -1.0]),
        }
        return slips[self.settings.slip]


class ChangesLate(AsyncRolloutLoop):
    """Puts a token that no model has into a rollout that has been looked at already."""

    mended = False

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        rollout = await super().generate_one(prompt, tools, group_id)
        if not self.mended:
            ids = rollout.turns[-1].output_ids
            asyncio.get_running_loop().call_soon(ids.__setitem__, 0, 99999)
        return rollout


class AsksWith(AsyncRolloutLoop):
    """Asks with a token that `settings.token` says."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        turn = await self.generate_one_turn([5, self.settings.token])
        return Rollout(completion=[], completion_ids=turn.output_ids, turns=[turn])


class Told(AsyncRolloutLoop):
    """Puts a message in front of the prompt, and gives the tools that `settings.tools` says: all, or the first."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        prompt.insert(0, {"role": "system", "content": "Be short."})
        return await super().generate_one(prompt, tools[: self.settings.tools], group_id)


class MadeAnew(AsyncRolloutLoop):
    """Gives a rollout of its own, of what agrpo's loop gave; in rollout 1 it is given up."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        given = await super().generate_one(prompt, tools, group_id)
        why = StopReason.ENGINE_ERROR if given.index == 1 else StopReason.STOP
        return Rollout(
            completion=given.completion, completion_ids=given.completion_ids, turns=given.turns, stop_reason=why
        )


class GivesUp(AsyncRolloutLoop):
    """Asks with more tokens than can be trained in its second turn."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        turn = await self.generate_one_turn([5, 6])
        await self.generate_one_turn([5] * self.config.step.micro_tokens)
        raise AssertionError(f"{turn} was followed by a turn that cannot be trained")


class EvenRowsThenAll(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        CALLED.append((row_index, row, epoch))
        return epoch > 0 or row_index % 2 == 0


class NothingInEpochOne(AsyncRolloutLoop):
    mended = False

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return epoch != 1 or self.mended


class FilterRaises(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return row["level"] > 1


class FilterSaysNothing(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return None  # type: ignore[return-value]


class Halved(AsyncRolloutLoop):
    """Half of how far a reward stands above the mean."""

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        assert group.rewards is not None
        CALLED.append((group.ticket, group.rewards.tolist(), [len(own) for own in group.completions_sequences]))
        return (group.rewards - np.nanmean(group.rewards)) / 2


class Paid(AsyncRolloutLoop):
    """What the environment paid, 0 where it paid nothing."""

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        CALLED.append((group.env_rewards, group.rollout_rewards))
        return np.array([0.0 if paid is None else paid[1] for paid in group.env_rewards])


class OddAdvantages(AsyncRolloutLoop):
    """Gives what `settings.gives` says."""

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        given: dict[str, Callable[[], Any]] = {
            "short": lambda: np.zeros(1),
            "nan": lambda: np.full(len(group.rollouts), np.nan),
            "list": lambda: [0.0] * len(group.rollouts),
            "raises": lambda: group.env_rewards[99],
        }
        return given[self.settings.gives]()


class Everything(AsyncRolloutLoop):
    """Every hook, each noted: its name, what it is about, and its event loop."""

    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()
        CALLED.append(("setup", None))

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        CALLED.append(("filter_prompt", row_index))
        return True

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        CALLED.append(("generate_one", group_id))
        return await super().generate_one(prompt, tools, group_id)

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        assert asyncio.get_running_loop() is self.loop
        CALLED.append(("generate_one_turn", None))
        return await super().generate_one_turn(prompt_ids)

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        assert group.rewards is not None
        CALLED.append(("compute_advantages", group.ticket))
        return super().compute_advantages(group)

    async def close(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        CALLED.append(("close", None))


class Forever(AsyncRolloutLoop):
    """Is never set up, and cannot be closed."""

    async def setup(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

    async def close(self) -> None:
        CALLED.append(("close",))
        raise OSError("nothing to close")


class SyncTurn(AsyncRolloutLoop):
    def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:  # type: ignore[override]
        raise AssertionError


class OtherArguments(AsyncRolloutLoop):
    def filter_prompt(self, row: dict[str, Any]) -> bool:  # type: ignore[override]
        raise AssertionError


class OtherNames(AsyncRolloutLoop):
    def filter_prompt(self, index: int, row: dict[str, Any], epoch: int) -> bool:  # type: ignore[override]
        raise AssertionError


class NoMethod(AsyncRolloutLoop):
    compute_advantages = 1  # type: ignore[assignment]


class OwnInit(AsyncRolloutLoop):
    def __init__(self, model: str) -> None:
        raise AssertionError(model)


class FurtherArgument(AsyncRolloutLoop):
    """One of its own with a default is fine."""

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int, least: int = 0) -> bool:
        return row_index >= least


class Blocked(AsyncRolloutLoop):
    """Every rollout but those of the first `settings.free` groups waits on a thread of asyncio's until it is let go."""

    async def generate_one(
        self, prompt: list[dict[str, Any]], tools: list[Callable[..., Any]], group_id: int = 0
    ) -> Rollout:
        if group_id >= self.settings.free:
            await asyncio.to_thread(LET_GO.wait, 60)
        return await super().generate_one(prompt, tools, group_id)


class Outer:
    class Inner(AsyncRolloutLoop):
        """Not at the top of a module."""


class NoLoop:
    """No subclass."""
