"""Questions with a known answer, and the part of the quickstart that may see each: decided by content, never by a seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agrpo.records.prompt import Message

HELD_OUT_SHARE, WARM_START_SHARE = 0.2, 0.55


class Part(StrEnum):
    """Who may see a question."""

    HELD_OUT = "held_out"
    WARM_START = "warm_start"
    TRAINING = "training"


def part_of(content: str) -> Part:
    """The part that owns this content. The same content always belongs to the same part."""
    place = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big") / 2**64
    if place < HELD_OUT_SHARE:
        return Part.HELD_OUT
    return Part.WARM_START if place < HELD_OUT_SHARE + WARM_START_SHARE else Part.TRAINING


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item in reasoning_gym's own form."""

    text: str
    answer: str
    content: str
    """What is asked, freed of its wording and order: two questions with the same content are the same exercise."""
    difficulty: int
    """Numbers in the question."""
    metadata: dict[str, Any]
    """What reasoning_gym's scorer reads."""

    @property
    def part(self) -> Part:
        return part_of(self.content)

    @property
    def messages(self) -> list[Message]:
        return [{"role": "user", "content": self.text}]

    def row(self, dataset: str) -> dict[str, Any]:
        """The question as a prompt row; `dataset` is the reasoning_gym dataset whose scorer judges the answers."""
        entry = {"question": self.text, "answer": self.answer, "metadata": self.metadata}
        return {
            "prompt": self.messages,
            "reasoning_gym_dataset": dataset,
            "reasoning_gym_entry": json.dumps(entry),
            "difficulty": self.difficulty,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A question answered as the warm start should learn it."""

    question: Question
    completion: str
    """The last message."""
    before: tuple[Message, ...] = ()
    """Messages between the question and the last: the policy's calls of tools, and what came back."""
    schemas: tuple[dict[str, Any], ...] = ()
    """Of the tools that the policy is shown, as chat templates take them."""
    first_token_weight: float = 1.0
    """Of the loss on the first token that the policy writes. Below 1: learn how to go on, but start so less often."""

    @property
    def messages(self) -> list[Message]:
        """The whole conversation. What it says as `assistant` is to be learned."""
        return [*self.question.messages, *self.before, {"role": "assistant", "content": self.completion}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the quickstart teaches: its questions, and the settings at which it was measured."""

    name: str
    about: str
    """One sentence for the user."""
    dataset: str
    """The reasoning_gym dataset whose scorer judges the answers."""
    demonstrations: Callable[[int], Iterator[Demonstration]]
    """Endless, drawn from a seed, all of the warm start's part."""
    training: Callable[[int], list[Question]]
    """What the run asks, drawn from a seed."""
    held_out: Callable[[], list[Question]]
    """What measures the policy; the same in every run."""
    has_positions: bool
    """Whether the policy sees token positions. Without, what it learns on short lists can reach longer ones."""
    warm_start_steps: int
    max_completion_length: int
    max_steps: int
    learning_rate: float
    betas: tuple[float, float]
    warmup_steps: int
    """These four of the run, not of the warm start."""
