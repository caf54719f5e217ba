"""A turn that a hook gave, held to what can be trained: ids of the model's vocabulary, log-probs that are some."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, cast

import numpy as np

from agrpo.records.rollout import TurnRecord
from agrpo.records.top_tokens import NO_TOKEN, TopTokens
from agrpo.rollout_loop.returned import ROUNDING, Unfit, log_prob, token_ids


def fitting_turn(where: str, turn: TurnRecord, num_tokens: int) -> TurnRecord:
    """The turn, with 0 for log-probs that rounding put above it. Raises `Unfit`, which names the place in `where`.

    `num_tokens`: of the vocabulary.
    """
    for name in ("prompt_ids", "output_ids"):
        check_ids(f"{where}.{name}", getattr(turn, name), num_tokens)
    for place, ids in enumerate(turn.output_sampling_mask or []):
        check_ids(f"{where}.output_sampling_mask[{place}]", ids, num_tokens)
    if turn.output_sampler_logprobs is not None:
        _check_top(f"{where}.output_sampler_logprobs", turn.output_sampler_logprobs, num_tokens)
    log_probs = _log_probs(f"{where}.output_log_probs", turn.output_log_probs)
    return turn if log_probs is turn.output_log_probs else replace(turn, output_log_probs=log_probs)


def check_ids(where: str, ids: Any, num_tokens: int) -> None:
    """Raise `Unfit` for what is no list of ids of the vocabulary."""
    if not isinstance(ids, list):
        raise Unfit(f"{where} is {type(ids).__name__}; expected a list of token ids")
    if not _within(ids, np.dtype(np.int64), 0, num_tokens - 1):
        token_ids(where, cast("Any", ids), num_tokens)  # says which


def _log_probs(where: str, given: Any) -> list[float]:
    if not isinstance(given, list):
        raise Unfit(f"{where} is {type(given).__name__}; expected a list of log-probs")
    values = cast("list[Any]", given)
    if _within(values, np.dtype(np.float64), -float(np.finfo(np.float32).max), 0.0):
        return values
    return [log_prob(f"{where}[{place}]", value) for place, value in enumerate(values)]


def _within(values: Any, kind: np.dtype[Any], least: float, most: float) -> bool:
    """Whether these are numbers of that kind, all of them in between: at once, since a turn may have thousands."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        return False
    if found.size == 0:
        return True
    return found.ndim == 1 and found.dtype == kind and bool(found.min() >= least and found.max() <= most)


def _check_top(where: str, given: Any, num_tokens: int) -> None:
    if isinstance(given, TopTokens):
        unknown = (given.ids < NO_TOKEN) | (given.ids >= num_tokens)
        odd = (unknown | np.isnan(given.logprobs) | (given.logprobs > ROUNDING)).any(axis=1)
    elif isinstance(given, list):
        odd = np.array([not _is_top(own, num_tokens) for own in cast("list[Any]", given)], dtype=bool)
    else:
        raise Unfit(f"{where} is {type(given).__name__}; expected a list, with a dict for each token")
    if odd.any():
        place = int(odd.argmax())
        raise Unfit(
            f"{where}[{place}] is {str(given[place])[:80]}; expected a dict of token ids from 0 to {num_tokens - 1} and their "
            "log-probs in nats, not above 0"
        )


def _is_top(own: Any, num_tokens: int) -> bool:
    if not isinstance(own, dict):
        return False
    return all(
        type(token) is int and 0 <= token < num_tokens and isinstance(value, Real) and float(value) <= ROUNDING
        for token, value in cast("dict[Any, Any]", own).items()
    )
