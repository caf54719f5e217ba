"""A penalty on saying the same again. "Demystifying Long Chain-of-Thought Reasoning", arXiv:2502.03373, C.2 (P-303).

The form is one value per answer. The paper's is one per token.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from agrpo.records.group import RolloutGroup
from agrpo.records.rollout import Rollout
from agrpo.registry import part


@part
class RepetitionPenalty:
    """`max_penalty` times the share of n-grams that are repeats of an earlier one.

    Words are what white space separates, in lower case, over all that the assistant said: its thoughts included, its calls
    of tools not. Text without white space is one word, and worth 0.
    """

    ngram_size: Annotated[int, Field(ge=1)] = 3
    """Words in an n-gram. An answer of fewer is worth 0."""
    max_penalty: Annotated[float, Field(le=0, allow_inf_nan=False)] = -1.0
    """What an answer tends to that says one n-gram for ever."""

    whole_group: ClassVar[bool] = False

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """A penalty from `max_penalty` to 0 per rollout."""
        return [self._penalty(_words(rollout)) for rollout in group.rollouts]

    def _penalty(self, words: list[str]) -> float:
        ngrams = [tuple(words[start : start + self.ngram_size]) for start in range(len(words) - self.ngram_size + 1)]
        return self.max_penalty * (1 - len(set(ngrams)) / len(ngrams)) or 0.0 if ngrams else 0.0


def _words(rollout: Rollout) -> list[str]:
    said = [
        str(message.get(part) or "")
        for message in rollout.completion
        if message.get("role") == "assistant"
        for part in ("reasoning_content", "content")
    ]
    return "\n".join(said).lower().split()
