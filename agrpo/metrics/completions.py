"""Completions: how long they are and how they end (A-283 to A-286), over all consumed groups."""

from __future__ import annotations

from statistics import fmean

from agrpo.metrics import StepFacts


def measure(facts: StepFacts) -> dict[str, float]:
    """Lengths in generated tokens, over the rollouts that have an answer.

    `clipped_ratio`: share whose last turn was not ended by the model; `duplicate_frac`: share equal to an earlier rollout
    of its group.
    """
    lengths: list[int] = []
    ended: list[int] = []
    duplicates: list[bool] = []
    for group in facts.consumed:
        for prompted, length, terminated, duplicate in zip(
            group.num_prompt_tokens,
            group.num_completion_tokens,
            group.terminated,
            group.duplicates,
            strict=True,
        ):
            if prompted:
                lengths.append(length)
                duplicates.append(duplicate)
                if terminated:
                    ended.append(length)
    if not lengths:
        return {}
    measures = {
        "completions/mean_length": fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(ended) / len(lengths),
        "completions/duplicate_frac": fmean(duplicates),
    }
    if ended:
        measures |= {
            "completions/mean_terminated_length": fmean(ended),
            "completions/min_terminated_length": float(min(ended)),
            "completions/max_terminated_length": float(max(ended)),
        }
    return measures
