"""A completion as vLLM is asked for it, and its answer as a turn.

`/inference/v1/generate` takes tokens and gives tokens, says under which weights each one was sampled, and is used where
the server opens it (`--enable-scale-out`). Else `/v1/completions`, which says neither weights nor candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from agrpo.engines.serving_vllm.facts import ODD
from agrpo.errors import EngineError
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
ALL_TOKENS = 2**30
"""More than any vocabulary has."""
MASKED = -9000.0
"""Servers write -9999 for a log-prob that is minus infinity or none at all."""


class OtherWeights(EngineError):
    """A completion was sampled under weights that nobody gave the server."""


@contextmanager
def _read_whole() -> Generator[None]:
    """An answer that has something else where a completion has its parts is a wrong answer, and no slip of the program."""
    try:
        yield
    except ODD as error:
        raise EngineError(f"the server's answer is no completion: {error!r}") from error


def sampling_params(request: CompletionRequest, most: int, *, seeds: bool) -> dict[str, Any]:
    """Sampling parameters of vLLM for a request of at most `most` tokens, all of them said outright.

    One more log-prob is asked for than is wanted, since the sampled token takes a place among them.
    """
    sampling = request.sampling
    wanted = sampling.num_sampler_logprobs
    told = {
        "max_tokens": most,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "logprobs": wanted + 1 if wanted else 0,
        "stop_token_ids": sorted(request.stop_ids),
        "ignore_eos": True,  # what ends a completion is said above
        "skip_special_tokens": False,
    }
    return told | ({"seed": request.seed} if seeds else {})


def probe_params(most: int, *, with_candidates: bool) -> dict[str, Any]:
    """Sampling parameters of a request of one token that tells the log-probs of the `most` most likely ones.

    They are not asked for by id (`logprob_token_ids`): vLLM's first model runner, the one of CPUs, then forgets the most
    likely tokens of every other request that it samples for in the same step. `with_candidates`: the server returns them,
    and refuses requests that keep all tokens.
    """
    return {
        "max_tokens": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": ALL_TOKENS if with_candidates else 0,
        "min_p": 0.0,
        "ignore_eos": True,
        "logprobs": most,
    }


def generate_body(model: str, request_id: str, prompt_ids: Sequence[int], params: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to `GENERATE`."""
    return {"model": model, "request_id": request_id, "token_ids": list(prompt_ids), "sampling_params": params}


def completions_body(model: str, request_id: str, prompt_ids: Sequence[int], params: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to `COMPLETIONS`, which has the same parameters beside the others."""
    return {
        "model": model,
        "request_id": request_id,
        "prompt": list(prompt_ids),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **params,
    }


@_read_whole()
def turn_of(
    answer: Any,
    request: CompletionRequest,
    most: int,
    vocabulary: int,
    *,
    version_of: Callable[[str], int | None] | None,
    otherwise: int,
) -> TurnRecord:
    """The turn that a server answered with. Raises `EngineError` for an answer that is not one whole completion.

    `most`: tokens that it was asked for at most. `vocabulary`: how many tokens the learner's model knows. `version_of`:
    policy version by the label that the server reports for each token; None: all are of `otherwise`.
    """
    choice = _only_choice(answer)
    ids = _ids(choice)
    if len(ids) > most or (len(ids) < most and ids[-1] not in request.stop_ids):
        raise EngineError(
            f"asked for {most} tokens or an end before, the server returned {len(ids)} and no end (finish_reason "
            f"{choice.get('finish_reason')})"
        )
    logprobs, tops = _logprobs(choice, ids)
    if (highest := max(max(top) for top in tops)) >= vocabulary:
        raise EngineError(
            f"the server returned token {highest}, the model that is trained has {vocabulary}; it serves another model"
        )
    wanted = request.sampling.num_sampler_logprobs
    if not request.sampling.truncated and any(len(top) < wanted for top in tops):
        raise EngineError(
            f"asked for the {wanted} most likely tokens at each place, the server returned {min(len(top) for top in tops)}"
        )
    return TurnRecord(
        prompt_ids=list(request.prompt_ids),
        output_ids=ids,
        output_log_probs=logprobs,
        output_sampling_mask=_candidates(choice, ids, vocabulary) if request.sampling.truncated else None,
        output_sampler_logprobs=[_most_likely(top, wanted) for top in tops] if wanted else None,
        output_versions=[otherwise] * len(ids) if version_of is None else _versions(choice, len(ids), version_of),
        stop_reason=StopReason.STOP if ids[-1] in request.stop_ids else StopReason.LENGTH,
    )


@_read_whole()
def logprobs_of(answer: Any, of: Sequence[int], most: int) -> list[float]:
    """Log-probs of these ids as the next token, out of the answer to `probe_params(most)`.

    An id that is not among the tokens told has the log-prob of the last of those at most, and is given that; so is one
    that is only told of because it was sampled, or the answer would be another at each draw. So where `of` are another
    model's likeliest tokens, no more of them than are told, the answers of the two are never further apart than the two
    distributions are at some token.
    """
    choice = _only_choice(answer)
    _, (found,) = _logprobs(choice, _ids(choice)[:1])
    if len(found) < most:
        raise EngineError(f"asked for the {most} most likely tokens, the server returned {len(found)}")
    # The sampled token may have taken the place of the last of them.
    bound = sorted(found.values(), reverse=True)[max(most - 2, 0)]
    return [max(found.get(token, bound), bound) for token in of]


def _only_choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        number = len(choices) if isinstance(choices, list) else "no"
        raise EngineError(f"asked for one completion, the server returned {number} choices")
    return choices[0]


def _ids(choice: dict[str, Any]) -> list[int]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(token, int) and token >= 0 for token in ids):
        raise EngineError(f"the server returned no tokens: token_ids = {ids!r}")
    return ids


def _logprobs(choice: dict[str, Any], ids: list[int]) -> tuple[list[float], list[dict[int, float]]]:
    """Per token its log-prob, and those of all tokens that came with it. Raises `EngineError`."""
    told = choice.get("logprobs") or {}
    places = told.get("content")
    found = _generated(places) if isinstance(places, list) else _completed(told, ids)
    if len(found) != len(ids):
        raise EngineError(f"the server returned {len(ids)} tokens and {len(found)} log-probs")
    values = [top.get(token) for token, top in zip(ids, found, strict=True)]
    for place, value in enumerate(values):
        if value is None or not MASKED < value <= 1e-4:
            raise EngineError(
                f"the server gave token {ids[place]} of a completion, which it sampled, the log-prob {value}: its weights are "
                "not numbers, or it did not sample it"
            )
    return [min(value, 0.0) for value in values if value is not None], found


def _generated(places: list[Any]) -> list[dict[int, float]]:
    """`GENERATE`: by id."""
    return [
        {entry["token_id"]: entry["logprob"] for entry in [*reversed(place.get("top_logprobs") or []), place]}
        for place in places
    ]


def _completed(told: dict[str, Any], ids: list[int]) -> list[dict[int, float]]:
    """`COMPLETIONS`: by `token_id:N`, the sampled one beside the others."""
    sampled, tops = told.get("token_logprobs") or [], told.get("top_logprobs") or []
    tops = tops if len(tops) == len(sampled) else [None] * len(sampled)
    return [
        {int(name.partition(":")[2]): value for name, value in (top or {}).items()} | {token: value}
        for token, value, top in zip(ids, sampled, tops, strict=False)
    ]


def _most_likely(top: dict[int, float], wanted: int) -> dict[int, float]:
    kept = sorted(top.items(), key=lambda item: -item[1])[:wanted]
    return {token: min(value, 0.0) for token, value in kept if value > MASKED}


def _candidates(choice: dict[str, Any], ids: list[int], vocabulary: int) -> list[list[int]]:
    mask = choice.get("sampling_mask")
    if not isinstance(mask, list) or len(mask) != len(ids):
        raise EngineError(
            f"the server returned {len(ids)} tokens and candidate sets for {len(mask) if isinstance(mask, list) else 'none'} "
            "of them; start it with --return-sampling-mask"
        )
    for token, candidates in zip(ids, mask, strict=True):
        if token not in candidates or min(candidates) < 0 or max(candidates) >= vocabulary:
            raise EngineError(
                f"the server sampled token {token} from a set of {len(candidates)} tokens that does not hold it, or holds what "
                "is no token; its sampling masks belong to other tokens"
            )
    return [sorted(candidates) for candidates in mask]


def _versions(choice: dict[str, Any], length: int, version_of: Callable[[str], int | None]) -> list[int]:
    """The version that sampled each token, from the spans that the server reports."""
    found: list[int] = []
    for span in choice.get("weight_versions") or []:
        label = span["version"]
        if span["start"] != len(found):
            raise EngineError(f"the server's weight versions do not follow each other: {choice['weight_versions']}")
        if (version := version_of(label)) is None:
            raise OtherWeights(
                f'the server sampled under weights it calls "{label}", which nobody gave it; it was started again, or another '
                "run uses it"
            )
        found += [version] * (span["end"] - span["start"])
    if len(found) != length:
        raise EngineError(f"the server returned {length} tokens and weight versions for {len(found)} of them")
    return found
