"""The reward of the example: the last number of the answer, judged by the dataset's own scorer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

NUMBER = re.compile(r"-?\d+")


def last_number(
    completions: list[list[dict[str, Any]]],
    reasoning_gym_dataset: list[str],
    reasoning_gym_entry: list[str],
) -> list[float]:
    """1 where the last number of the answer is the right one, else 0.

    chain_sum's scorer pays half for "12" where "2" is right; only its full score counts here.
    """
    from reasoning_gym.factory import get_score_answer_fn

    values: list[float] = []
    for messages, dataset, entry in zip(completions, reasoning_gym_dataset, reasoning_gym_entry, strict=True):
        score: Callable[..., float] = get_score_answer_fn(dataset)
        answer = number_in(messages[-1]["content"] or "")
        values.append(float(score(answer=answer, entry=json.loads(entry)) >= 1.0))
    return values


def number_in(text: str) -> str | None:
    """The last whole number of `text`, as it is written there. None: it has none."""
    found = NUMBER.findall(text)
    return found[-1] if found else None
