"""Functions of the tests that make completions: `rollout_func` of a run."""

from __future__ import annotations

import time
from typing import Any

from agrpo import AsyncRolloutLoop, Rollout

CALLED: list[tuple[Any, Any]] = []
"""Prompts and trainer of each call; tests empty it first."""


def asked_of(prompts: list[Any], trainer: Any) -> list[list[int]]:
    """Each prompt in tokens, as often as completions are wanted."""
    render = trainer.processing_class.apply_chat_template
    ids = [render(prompt, add_generation_prompt=True, return_dict=False) for prompt in prompts]
    return [own for own in ids for _ in range(trainer.num_generations)]


def told(turns: list[Any], **columns: Any) -> dict[str, Any]:
    return {
        "prompt_ids": [turn.prompt_ids for turn in turns],
        "completion_ids": [turn.output_ids for turn in turns],
        "logprobs": [turn.output_log_probs for turn in turns],
        **columns,
    }


def passing(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """What the engine says."""
    CALLED.append((prompts, trainer))
    return told(trainer.generate(asked_of(prompts, trainer)))


async def passing_async(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return told(await trainer.generate_async(asked_of(prompts, trainer)))


def measured(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """With a column for the rewards."""
    turns = trainer.generate(asked_of(prompts, trainer))
    return told(turns, length=[len(turn.output_ids) for turn in turns], seen=[{"at": [1, 2.5]} for _ in turns])


def longer(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """Asks twice as often as is wanted, and keeps the later half."""
    asked = asked_of(prompts, trainer)
    return told(trainer.generate([*asked, *asked])[len(asked) :])


def elsewhere(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """The engine's first two tokens, and one of its own."""
    turns = trainer.generate(asked_of(prompts, trainer))
    return {
        "prompt_ids": [turn.prompt_ids for turn in turns],
        "completion_ids": [[*turn.output_ids[:2], 7] for turn in turns],
        "logprobs": [[*turn.output_log_probs[:2], -0.25] for turn in turns],
    }


def given(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """As `settings.returns` has it, in place of what a passing one returns; None leaves a key out."""
    changed = {**told(trainer.generate(asked_of(prompts, trainer))), **trainer.settings.returns}
    return {name: value for name, value in changed.items() if value != "left out"}


def no_dict(prompts: list[Any], trainer: Any) -> list[int]:
    return [1]


def odd_value(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    turns = trainer.generate(asked_of(prompts, trainer))
    return told(turns, thing=[object() for _ in turns])


def half_a_pair(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    turns = trainer.generate(asked_of(prompts, trainer))
    return told(turns, thing=["\ud800" for _ in turns])


def infinite(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return told(trainer.generate(asked_of(prompts, trainer)), logprobs=[[-float("inf")] * 2] * trainer.num_generations)


def not_a_number(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return told(trainer.generate(asked_of(prompts, trainer)), logprobs=[[float("nan")] * 2] * trainer.num_generations)


def raising(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    raise KeyError("answer")


def hanging(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    time.sleep(30)
    return {}


async def waiting_for_itself(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return told(trainer.generate(asked_of(prompts, trainer)))


def asking_text(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    return told(trainer.generate(["4 + 5 ="] * trainer.num_generations))


def one_argument(prompts: list[Any]) -> dict[str, Any]:
    return {}


def piece_by_piece(prompts: list[Any], trainer: Any) -> Any:
    yield {}


class Asking(AsyncRolloutLoop):
    async def generate_one(self, prompt: Any, tools: Any, group_id: int = 0) -> Rollout:
        return await super().generate_one(prompt, tools, group_id)


class Filtering(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return row_index > 0
