"""Some rollouts of a group are shown worked sums first: a `rollout_func`, and a reward that knows who had help."""

from __future__ import annotations

import re
from typing import Any

Message = dict[str, Any]

WORKED = (("3 + 4 =", "7"), ("8 + 5 =", "13"), ("2 + 9 =", "11"))
HELP_COSTS = 0.2
"""Of the reward, for each sum that was shown."""


def with_shots(prompts: list[list[Message]], trainer: Any) -> dict[str, list[Any]]:
    """Rollout number i of a group is shown `i % (most_shots + 1)` sums, so that every group has some with and some without."""
    shots = [index % (trainer.settings.most_shots + 1) for _ in prompts for index in range(trainer.num_generations)]
    questions = [prompt for prompt in prompts for _ in range(trainer.num_generations)]
    asked = [
        trainer.processing_class.apply_chat_template(
            shown(number) + question,
            add_generation_prompt=True,
            return_dict=False,
            **trainer.config.model.chat_template_kwargs,
        )
        for number, question in zip(shots, questions, strict=True)
    ]
    turns = trainer.generate(asked)
    return {
        "prompt_ids": [turn.prompt_ids for turn in turns],
        "completion_ids": [turn.output_ids for turn in turns],
        "logprobs": [turn.output_log_probs for turn in turns],
        "shots": shots,
    }


def shown(number: int) -> list[Message]:
    """As many worked sums, as turns of a conversation."""
    return [
        {"role": role, "content": text}
        for worked in WORKED[:number]
        for role, text in zip(("user", "assistant"), worked, strict=True)
    ]


def right_sum(completions: list[list[Message]], answer: list[str], shots: list[int], **columns: Any) -> list[float]:
    """1 where the last number of an answer is the sum, less what help costs. `shots` is what the function returned."""
    numbers = [re.findall(r"-?\d+", messages[-1]["content"]) for messages in completions]
    return [
        (1.0 - HELP_COSTS * number) * (found[-1:] == [right])
        for found, right, number in zip(numbers, answer, shots, strict=True)
    ]
