"""Training sequences: the tokens of a rollout, joined where one turn continues another.

A turn whose prompt begins with the tokens kept so far extends the same sequence; any other turn starts a new one (a
fork). Every generated token is trained in exactly one sequence; prompts and tool results are context (A-245 to A-247).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from agrpo.records.rollout import Rollout, TurnRecord

if TYPE_CHECKING:
    from agrpo.records.top_tokens import TopTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One sequence the model reads whole. All lists have one entry per token."""

    tokens: list[int]
    trained: list[bool]
    """Whether the token carries loss. The first token never does: nothing predicts it."""
    sampler_logprobs: list[float]
    """0.0 where the token is not trained."""
    versions: list[int]
    """Policy version that sampled the token; -1 for context."""
    candidates: list[list[int]] | None = None
    """Candidate ids of trained tokens, empty for others. None: the full vocabulary everywhere."""
    top: TopTokens | None = None
    """The sampler's most likely tokens, one place per *trained* token. None: not all of them were asked for."""

    @property
    def num_trained(self) -> int:
        return sum(self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The unit of the loss: one sequence of one rollout, with that rollout's advantage."""

    ticket: int
    rollout_index: int
    sequence_index: int
    sequence: TokenSequence
    advantage: float
    staleness: int
    """Weight updates between sampling and training."""


def sequences_of(rollout: Rollout) -> list[TokenSequence]:
    """The rollout's training sequences, in the order of their first turn."""
    grown: list[_Growing] = []
    for turn in rollout.turns:
        if not grown or turn.prompt_ids[: len(grown[-1].tokens)] != grown[-1].tokens:
            grown.append(_Growing())
        grown[-1].add(turn)
    return [growing.finish() for growing in grown]


def drift_of(rollout: Rollout) -> list[int]:
    """Per transition from a turn to the next one: tokens kept so far that the next prompt does not begin with.

    0 where the turn extends the sequence, above 0 where it begins another one (A-313, A-314).
    """
    drifts: list[int] = []
    kept: list[int] = []
    for turn in rollout.turns:
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(kept, turn.prompt_ids, strict=False)))
        drifts.append(len(kept) - common)
        kept = turn.prompt_ids + turn.output_ids
    return drifts[1:]


class _Growing:
    """A sequence to which turns are still added."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.trained: list[bool] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.candidates: list[list[int]] = []
        self.truncated = False
        self.top: list[TopTokens | None] = []

    def add(self, turn: TurnRecord) -> None:
        mask = _mask_of(turn)
        if any(mask) and len(turn.output_log_probs) != len(turn.output_ids):
            raise ValueError(
                f"a turn has {len(turn.output_ids)} output tokens and {len(turn.output_log_probs)} sampler log-probs; "
                "every trained token needs the log-prob it was sampled with"
            )
        self.top += [_top_of(turn, mask)] if any(mask) else []
        context = turn.prompt_ids[len(self.tokens) :]
        self._extend(context, [False] * len(context), [0.0] * len(context), [-1] * len(context), [[]] * len(context))
        logprobs = [value if kept else 0.0 for value, kept in zip(turn.output_log_probs, mask, strict=False)]
        versions = turn.output_versions or [0] * len(turn.output_ids)
        candidates = turn.output_sampling_mask or [[]] * len(turn.output_ids)
        self.truncated |= turn.output_sampling_mask is not None
        self._extend(turn.output_ids, mask, logprobs or [0.0] * len(mask), versions, candidates)

    def _extend(
        self,
        tokens: list[int],
        trained: list[bool],
        logprobs: list[float],
        versions: list[int],
        candidates: list[list[int]],
    ) -> None:
        self.tokens += tokens
        self.trained += trained
        self.logprobs += logprobs
        self.versions += versions
        self.candidates += candidates

    def finish(self) -> TokenSequence:
        trained = [False, *self.trained[1:]] if self.trained else []
        parts = [part for part in self.top if part is not None]
        top = type(parts[0]).joined(parts) if parts and len(parts) == len(self.top) else None
        return TokenSequence(
            tokens=self.tokens,
            trained=trained,
            sampler_logprobs=self.logprobs,
            versions=self.versions,
            candidates=self.candidates if self.truncated else None,
            top=top if top is None or trained == self.trained else top[1:],
        )


def _mask_of(turn: TurnRecord) -> list[bool]:
    if turn.output_mask is None:
        return [True] * len(turn.output_ids)
    if len(turn.output_mask) != len(turn.output_ids) or not {*turn.output_mask} <= {0, 1}:
        raise ValueError(
            f"a turn has {len(turn.output_ids)} output tokens and the output_mask {turn.output_mask}; expected a 1 for each "
            "token to train and a 0 for each other one"
        )
    return [value == 1 for value in turn.output_mask]


def _top_of(turn: TurnRecord, mask: list[bool]) -> TopTokens | None:
    """Of the turn's trained tokens."""
    if turn.output_sampler_logprobs is None:
        return None
    if len(turn.output_sampler_logprobs) != len(turn.output_ids):
        raise ValueError(
            f"a turn has {len(turn.output_ids)} output tokens and the sampler's most likely tokens at "
            f"{len(turn.output_sampler_logprobs)} places; expected one place per output token"
        )
    from agrpo.records.top_tokens import TopTokens  # it needs numpy, which judges of rewards do without

    return TopTokens.of(turn.output_sampler_logprobs).chosen([place for place, kept in enumerate(mask) if kept])
