"""What a `rollout_func` returned, held to its contract (G-213 to G-216) and taken apart by completion."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from agrpo.records.text import writable

NEEDED = ("prompt_ids", "completion_ids", "logprobs")
TOP = "logprob_token_ids"
MASKS = ("env_mask", "completion_mask", "tool_mask")
"""Names under which other trainers are told what not to train."""
ROUNDING = 1e-4
"""By how much the log-prob of a token that is all but certain may come out above 0."""


class Unfit(Exception):
    """It cannot be used. The message says which key, what is there and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One completion, as the function gave it."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    """Of each token of `completion_ids`, nats."""
    top: list[dict[int, float]] | None
    """Log-probs of the sampler's most likely tokens, by id, at each token. None: it gave none."""
    columns: dict[str, Any]
    """Whatever else it gave, as JSON has it."""


def completions_of(returned: Any, *, num_completions: int, num_tokens: int, taken: Collection[str]) -> list[Completion]:
    """The completions, in their order. Raises `Unfit`.

    `num_tokens`: of the vocabulary. `taken`: names under which rewards are given something else.
    """
    lists = _lists_of(returned, num_completions)
    _refuse_names(lists, taken)
    own = {name: values for name, values in lists.items() if name not in (*NEEDED, TOP)}
    return [
        _completion(
            {name: values[place] for name, values in lists.items() if name not in own},
            {name: _recordable(f"{name}[{place}]", values[place]) for name, values in own.items()},
            place,
            num_tokens,
        )
        for place in range(num_completions)
    ]


def token_ids(where: str, values: Any, num_tokens: int) -> list[int]:
    """Ids of a vocabulary of `num_tokens` as plain integers. Raises `Unfit`."""
    return [_token_id(f"{where}[{place}]", value, num_tokens) for place, value in enumerate(_list(where, values))]


def log_prob(where: str, value: Any) -> float:
    """The value as a float, 0 where rounding put it above. Raises `Unfit`, which names the place in `where`."""
    number = _plain(value)
    if isinstance(number, bool) or not isinstance(number, Real):
        raise Unfit(f"{where} is {_shown(value)}; expected a log-prob")
    logprob = float(number)
    if not math.isfinite(logprob) or logprob > ROUNDING:
        raise Unfit(f"{where} is {logprob}; expected a log-prob in nats, finite and not above 0")
    return min(logprob, 0.0)


def _lists_of(returned: Any, num_completions: int) -> dict[str, list[Any]]:
    """Every key's entries, one for each completion."""
    if not isinstance(returned, Mapping):
        raise Unfit(f"returned {type(returned).__name__}; expected a dict with {', '.join(NEEDED)}")
    given = cast("Mapping[Any, Any]", returned)
    odd = [name for name in given if not isinstance(name, str) or not name.strip()]
    if odd:
        raise Unfit(f"returned the key {odd[0]!r}; expected names, since rewards are given each as a keyword")
    missing = [name for name in NEEDED if name not in given]
    if missing:
        there = ", ".join(given) or "nothing"
        raise Unfit(f'returned no "{missing[0]}"; there is {there}; expected {", ".join(NEEDED)}')
    lists = {name: _list(name, values) for name, values in given.items()}
    for name, values in lists.items():
        if len(values) != num_completions:
            raise Unfit(
                f"{name} has {len(values)} entries; expected {num_completions}, one for each completion "
                "(engine.num_generations for each prompt)"
            )
    return lists


def _refuse_names(lists: Collection[str], taken: Collection[str]) -> None:
    for name in lists:
        if writable(name) != name:
            raise Unfit(
                f"returned the key {name!r}, which holds half a surrogate pair and cannot be recorded; rename it"
            )
        if name in MASKS:
            raise Unfit(
                f'returned "{name}"; every token of completion_ids is trained, and a mask would be ignored: return what the '
                "policy wrote alone, or write a generate_one, whose turns have an output_mask"
            )
        if name not in NEEDED and name in taken:
            raise Unfit(
                f'returned "{name}", under which rewards are given something else already; give it another name'
            )


def _completion(values: Mapping[str, Any], columns: dict[str, Any], place: int, num_tokens: int) -> Completion:
    prompt, written = (
        token_ids(f"{name}[{place}]", values[name], num_tokens) for name in ("prompt_ids", "completion_ids")
    )
    if not prompt:
        raise Unfit(f"prompt_ids[{place}] is empty; expected the tokens that the completion follows, one at least")
    where = f"logprobs[{place}]"
    entries = _list(where, values["logprobs"])
    if len(entries) != len(written):
        raise Unfit(
            f"{where} has {len(entries)} entries and completion_ids[{place}] {len(written)} tokens; expected one for each token"
        )
    several = [isinstance(_plain(entry), list | tuple) for entry in entries]
    if any(several):
        top = _top(place, entries, values.get(TOP), written, num_tokens)
        logprobs = [found[token] for found, token in zip(top, written, strict=True)]
    else:
        top, logprobs = None, [log_prob(f"{where}[{at}]", entry) for at, entry in enumerate(entries)]
        _check_alike(place, values.get(TOP), written, num_tokens)
    return Completion(prompt_ids=prompt, completion_ids=written, logprobs=logprobs, top=top, columns=columns)


def _check_alike(place: int, given: Any, written: list[int], num_tokens: int) -> None:
    """With one log-prob a token, the token that it is of can only be the one that was written."""
    if given is not None and token_ids(f"{TOP}[{place}]", given, num_tokens) != written:
        raise Unfit(
            f"{TOP}[{place}] is not completion_ids[{place}]; expected the same ids where logprobs has one number for each "
            "token, or lists of the most likely tokens in both"
        )


def _top(place: int, entries: list[Any], ids: Any, written: list[int], num_tokens: int) -> list[dict[int, float]]:
    """By token id, at each token; the one that was written is among them."""
    where = f"logprobs[{place}]"
    if ids is None:
        raise Unfit(
            f'{where} has several log-probs for a token; expected "{TOP}" of the same shape, which says of which'
        )
    named = _list(f"{TOP}[{place}]", ids)
    found: list[dict[int, float]] = []
    for at, (entry, token) in enumerate(zip(entries, written, strict=True)):
        values = [log_prob(f"{where}[{at}]", value) for value in _list(f"{where}[{at}]", entry)]
        own = token_ids(f"{TOP}[{place}][{at}]", named[at] if at < len(named) else [], num_tokens)
        if len(own) != len(values) or len({*own}) != len(own) or len(named) != len(entries):
            raise Unfit(
                f"{TOP}[{place}] is not of the shape of {where}: {own} stands for {len(values)} log-probs at token {at}; "
                "expected an id for each, none twice"
            )
        if token not in own:
            raise Unfit(f"{TOP}[{place}][{at}] is {own}; expected {token} among them, the token that was written there")
        found.append(dict(zip(own, values, strict=True)))
    return found


def _token_id(where: str, value: Any, num_tokens: int) -> int:
    try:
        number = operator.index(_plain(value))
    except TypeError:
        raise Unfit(f"{where} is {_shown(value)}; expected a token id") from None
    if isinstance(value, bool) or not 0 <= number < num_tokens:
        raise Unfit(f"{where} is {_shown(value)}; expected a token id from 0 to {num_tokens - 1}")
    return number


def _recordable(where: str, value: Any) -> Any:
    """The value as JSON has it, which is what is recorded."""
    try:
        text = json.dumps(value, allow_nan=False, default=_plain_or_refused)
        json.dumps(json.loads(text), ensure_ascii=False).encode()  # half a surrogate pair cannot be written
    except (TypeError, ValueError, RecursionError) as error:
        raise Unfit(
            f"{where} is {_shown(value)}, which cannot be recorded ({error}); expected what JSON holds: texts, finite numbers, "
            "true, false, None, lists and dicts of those"
        ) from None
    return json.loads(text)


def _plain_or_refused(value: Any) -> Any:
    made = _plain(value)
    if made is value:
        raise TypeError(f"there is {type(value).__name__}")
    return made


def _plain(value: Any) -> Any:
    """Lists and numbers in place of an array or a tensor."""
    made = getattr(value, "tolist", None)
    return made() if callable(made) else value


def _list(where: str, values: Any) -> list[Any]:
    made = _plain(values)
    if not isinstance(made, list | tuple):
        raise Unfit(f"{where} is {_shown(values)}; expected a list")
    return [*cast("list[Any]", made)]


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}…"
