"""A ledger of what an engine returned, apart from the rollouts that were made of it, and what samples owe it."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.sample import TokenSequence, drift_of, sequences_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """One answer of the engine. A copy: what becomes of the turn afterwards does not change it."""

    asked: tuple[int, ...]
    """Tokens of the request's prompt."""
    sampled: tuple[tuple[int, float], ...]
    """Each token with its log-prob."""

    @classmethod
    def of(cls, asked: list[int], turn: TurnRecord) -> Returned:
        sampled = zip(turn.output_ids, turn.output_log_probs, strict=True)
        return cls(asked=tuple(asked), sampled=tuple(sampled))

    @property
    def tokens(self) -> list[int]:
        """All that there was when it was returned."""
        return [*self.asked, *(token for token, _ in self.sampled)]


def assert_trained_once(rollout: Rollout, returned: list[Returned]) -> None:
    """Each token that the engine returned is trained once, with its own log-prob; no token that it was asked with is.

    `returned`: of this rollout's turns, in their order.
    """
    sampled = [pair for turn in returned for pair in turn.sampled]
    assert len({logprob for _, logprob in sampled}) == len(sampled), "each token has a log-prob of its own"
    sequences = sequences_of(rollout)
    assert [pair for sequence in sequences for pair in _trained(sequence)] == sampled
    assert rollout.completion_ids == [token for token, _ in sampled]
    assert [sequence.tokens for sequence in sequences] == [turns[-1].tokens for turns in _joined(returned)]
    for sequence, turns in zip(sequences, _joined(returned), strict=True):
        places = [place for turn in turns for place in range(len(turn.asked), len(turn.tokens))]
        assert [place for place, own in enumerate(sequence.trained) if own] == places
        context = zip(sequence.sampler_logprobs, sequence.trained, strict=True)
        assert {value for value, own in context if not own} <= {0.0}
    assert sum(drift > 0 for drift in drift_of(rollout)) == len(sequences) - 1


def _trained(sequence: TokenSequence) -> list[tuple[int, float]]:
    pairs = zip(sequence.tokens, sequence.sampler_logprobs, sequence.trained, strict=True)
    return [(token, logprob) for token, logprob, own in pairs if own]


def _joined(returned: list[Returned]) -> list[list[Returned]]:
    """The turns of each sample: those that go on from all tokens before them are in one."""
    samples: list[list[Returned]] = []
    for turn in returned:
        kept = samples[-1][-1].tokens if samples else None
        if kept is None or list(turn.asked[: len(kept)]) != kept:
            samples.append([])
        samples[-1].append(turn)
    return samples
