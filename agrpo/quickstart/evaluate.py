"""How many held-out questions a policy answers, with transformers' own `generate` and reasoning_gym's own scorers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from agrpo.loading import LOADING
from agrpo.prompts import DatasetRow
from agrpo.quickstart.progress import transformers_bars_hidden

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 256
"""Questions answered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Shares of questions, from 0 to 1. An answer passes with the scorer's full reward, 1."""

    num_questions: int
    greedy: float
    """Passed by always taking the most likely token."""
    sampled: float
    """Passed by a sample at temperature 1, on average."""
    any_sample: float
    """Passed by at least one of the samples: what the policy can already do sometimes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A policy measured on a set of questions."""

    num_samples: int
    """Per question."""
    mean_reward: float
    """Of the samples. Above `overall.sampled` where the scorer pays for wrong answers."""
    overall: PassRate
    by_difficulty: dict[int, PassRate]
    """By the column `difficulty`, rising."""


def pass_rates(
    model_folder: Path, rows: Sequence[DatasetRow], *, max_completion_length: int, num_samples: int = 4, seed: int = 0
) -> Evaluation:
    """Measure the policy that `save_pretrained` wrote to `model_folder`.

    `rows` have the columns of `Question.row`. Uses torch's present number of threads, and leaves its generator alone.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with LOADING, transformers_bars_hidden():
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    answers = _Answers(model, tokenizer, max_completion_length, num_samples)
    measured: dict[int, list[_Measured]] = defaultdict(list)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for start in range(0, len(rows), BATCH_SIZE):
            batch = rows[start : start + BATCH_SIZE]
            for row, completions in zip(batch, answers.to(batch), strict=True):
                greedy, *sampled = (reward_of(completion, row) for completion in completions)
                measured[row["difficulty"]].append(_Measured(greedy=greedy, sampled=sampled))
    return _evaluation(measured, num_samples)


def reward_of(completion: str, row: DatasetRow) -> float:
    """The score of the text after the last `</think>`."""
    from reasoning_gym.factory import get_score_answer_fn

    score = cast("Any", get_score_answer_fn(row["reasoning_gym_dataset"]))
    return float(score(completion.rpartition("</think>")[2].strip(), json.loads(row["reasoning_gym_entry"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    greedy: float
    sampled: list[float]


@dataclass(frozen=True, slots=True)
class _Answers:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_completion_length: int
    num_samples: int

    def to(self, rows: Sequence[DatasetRow]) -> Iterator[list[str]]:
        """The greedy completion and then the samples of each row."""
        prompts: Any = self.tokenizer.apply_chat_template(
            [row["prompt"] for row in rows],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        greedy = self._completions(prompts, do_sample=False)
        sampled = self._completions(
            prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=self.num_samples
        )
        for place, completion in enumerate(greedy):
            yield [completion, *sampled[place * self.num_samples : (place + 1) * self.num_samples]]

    def _completions(self, prompts: Any, **sampling: Any) -> list[str]:
        generated: torch.Tensor = cast("Any", self.model).generate(
            input_ids=prompts["input_ids"],
            attention_mask=prompts["attention_mask"],
            max_new_tokens=self.max_completion_length,
            **sampling,
        )
        completions = generated[:, prompts["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(completions, skip_special_tokens=True)


def _evaluation(measured: dict[int, list[_Measured]], num_samples: int) -> Evaluation:
    everything = [one for of_difficulty in measured.values() for one in of_difficulty]
    return Evaluation(
        num_samples=num_samples,
        mean_reward=fmean(reward for one in everything for reward in one.sampled),
        overall=_pass_rate(everything),
        by_difficulty={difficulty: _pass_rate(measured[difficulty]) for difficulty in sorted(measured)},
    )


def _pass_rate(measured: list[_Measured]) -> PassRate:
    return PassRate(
        num_questions=len(measured),
        greedy=fmean(one.greedy >= 1.0 for one in measured),
        sampled=fmean(reward >= 1.0 for one in measured for reward in one.sampled),
        any_sample=fmean(max(one.sampled) >= 1.0 for one in measured),
    )
