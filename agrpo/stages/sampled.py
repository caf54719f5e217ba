"""Which tokens of given completions the run's engine has sampled, and what it said of them.

A function of the user's returns tokens alone; of those that the engine gave it, versions, candidates and most likely tokens
are found again by the tokens before them. Where two answers have a token, it is of the one that was asked later in the
text and goes on beyond the other: the other was cut before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from agrpo.records.rollout import TurnRecord
from agrpo.rollout_loop.returned import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Of one completion; every list has an entry for each of its tokens."""

    versions: list[int]
    """Policy version that sampled the token."""
    candidates: list[list[int]] | None
    """Ids that could be sampled, empty: all. None: all everywhere."""
    top: Sequence[dict[int, float]] | None
    """The sampler's most likely tokens. None: of some token they are not known."""
    begun_seconds: float | None = None
    """From the rollout's begin to the first request whose answer it holds. None: it holds none."""
    duration_seconds: float | None = None
    """Of the requests whose answers it holds, together."""


def sampled_of(completions: Sequence[Completion], asked: Sequence[TurnRecord], version: int) -> list[Sampled]:
    """Of each completion. `asked`: the engine's answers. `version`: that of a token from elsewhere."""
    unused = [*asked]
    return [_sampled(completion, unused, asked, version) for completion in completions]


def _sampled(completion: Completion, unused: list[TurnRecord], asked: Sequence[TurnRecord], version: int) -> Sampled:
    num = len(completion.completion_ids)
    versions, candidates = [version] * num, list[list[int]]([[]] * num)
    top: list[dict[int, float] | None] = [None] * num
    tokens = completion.prompt_ids + completion.completion_ids
    start = len(completion.prompt_ids)
    covered = start
    """Place in `tokens` up to which they are known."""
    held: list[TurnRecord] = []
    for at in sorted({len(turn.prompt_ids) for turn in asked}):
        turn, count = _longest(tokens, at, [*unused, *asked])
        if turn is None or at + count <= covered:
            continue
        if turn in unused:
            unused.remove(turn)
        covered = at + count
        held.append(turn)
        for offset in range(max(at, start) - at, count):
            place = at - start + offset
            versions[place] = turn.output_versions[offset] if turn.output_versions else version
            candidates[place] = turn.output_sampling_mask[offset] if turn.output_sampling_mask else []
            top[place] = turn.output_sampler_logprobs[offset] if turn.output_sampler_logprobs is not None else None
    known = [found for found in top if found is not None]
    seconds = [turn.duration_seconds for turn in held if turn.duration_seconds is not None]
    return Sampled(
        versions=versions,
        candidates=candidates if any(candidates) else None,
        top=completion.top if completion.top is not None else known if len(known) == num else None,
        begun_seconds=min((turn.begun_seconds for turn in held if turn.begun_seconds is not None), default=None),
        duration_seconds=sum(seconds) if seconds else None,
    )


def _longest(tokens: list[int], at: int, turns: Sequence[TurnRecord]) -> tuple[TurnRecord | None, int]:
    """The first of the turns that the tokens follow longest from `at` on, and how many of its tokens they have."""
    best: TurnRecord | None = None
    most = 0
    for turn in turns:
        if len(turn.prompt_ids) != at or turn.prompt_ids != tokens[:at]:
            continue
        count = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(turn.output_ids, tokens[at:], strict=False))
        )
        if count > most:
            best, most = turn, count
    return best, most
