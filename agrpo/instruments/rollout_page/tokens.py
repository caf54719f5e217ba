"""Tokens turn by turn, with the learner's word on each: the join of what was sampled and what was trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

from agrpo.instruments.rollout_page.facts import (
    Alternative,
    Consumption,
    GroupFacts,
    SampleFacts,
    TokenFacts,
    TurnFacts,
)
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sample import TokenSequence, sequences_of

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are cut here before they are exponentiated, as the losses do."""
LEADING_TOKENS = 4
"""Tokens before a piece that decide how it begins, such as whether its space is kept."""


class Pieces(Protocol):
    """Text of token ids."""

    @property
    def missing(self) -> str | None:
        """Why there is no text; None: there is."""
        ...

    def __call__(self, token_ids: Sequence[int]) -> Sequence[str | None]:
        """Text of each id where it stands."""
        ...

    def alone(self, token_id: int) -> str | None:
        """Text of an id by itself."""
        ...


def turn_rows(rows: Sequence[Mapping[str, Any]]) -> list[TurnRecord]:
    """The turns as the engine gave them. A turn without log-probs is context, for nothing of it could be trained."""
    return [_turn(row) for row in rows]


def _turn(row: Mapping[str, Any]) -> TurnRecord:
    output, logprobs = row["output_ids"] or [], row["output_log_probs"] or []
    complete = len(logprobs) == len(output)
    top = zip(row["top_ids"], row["top_logprobs"], strict=True) if row["top_ids"] is not None else None
    return TurnRecord(
        prompt_ids=row["prompt_ids"] or [],
        output_ids=output,
        output_log_probs=logprobs if complete else [],
        output_mask=row["output_mask"] if complete else [0] * len(output),
        output_versions=row["output_versions"] or [],
        output_sampler_logprobs=[dict(zip(ids, given, strict=True)) for ids, given in top] if top else None,
        stop_reason=StopReason(row["stop_reason"]),
        begun_seconds=row.get("begun_seconds"),
        duration_seconds=row.get("duration_seconds"),
    )


def turns_of(turns: Sequence[TurnRecord], samples: Sequence[SampleFacts], pieces: Pieces) -> list[TurnFacts]:
    """Every turn with its tokens. The learner's values are those of the first step that trained the rollout."""
    first = {sample.sequence_index: sample for sample in reversed(samples)}
    fitting = _fitting(first, sequences_of(_rollout_of(turns)))
    found: list[TurnFacts] = []
    for place, turn in enumerate(turns):
        # The one rule for forks is `sequences_of`: the last sequence of the turns so far is this turn's, and ends with it.
        grown = sequences_of(_rollout_of(turns[: place + 1]))
        before = len(sequences_of(_rollout_of(turns[:place])))
        sequence_index, sequence = len(grown) - 1, grown[-1]
        forked = place > 0 and len(grown) > before
        kept = _common(turns[place - 1].prompt_ids + turns[place - 1].output_ids, turn.prompt_ids) if place else 0
        found.append(
            TurnFacts(
                turn_index=place,
                sequence_index=sequence_index,
                forked=forked,
                kept_tokens=kept,
                stop_reason=turn.stop_reason.value,
                begun_seconds=turn.begun_seconds,
                duration_seconds=turn.duration_seconds,
                num_prompt_tokens=len(turn.prompt_ids),
                context=_context(turn.prompt_ids[kept:], pieces) if place else [],
                tokens=list(_output(turn, sequence, fitting.get(sequence_index), pieces)),
            )
        )
    return found


def why_no_learner(
    group: GroupFacts, consumed: Sequence[Consumption], samples: Sequence[SampleFacts], turns: Sequence[TurnFacts]
) -> str | None:
    """Why tokens have no learner's log-prob, ratio and entropy; None where they have, or there are no tokens."""
    if any(token.learner_logprob is not None for turn in turns for token in turn.tokens):
        return None
    if samples and samples[0].log_probs is None:
        why = f"trained in step {samples[0].step}, whose log-probs by token are not recorded"
    elif samples:
        why = f"the learner's log-probs of step {samples[0].step} do not fit the trained tokens"
    elif group.status == "pending":
        why = f"not trained yet, the group is {group.reason}"
    elif group.status == "dropped":
        why = f"not trained, the group was dropped: {group.reason}"
    elif consumed[0].finished_at is None:
        why = f"step {consumed[0].step}, which trains it, is not done or not recorded yet"
    else:
        why = f"step {consumed[0].step} trained its group without this rollout"
    return f"{why}; so there is no learner's log-prob, ratio or entropy"


def _rollout_of(turns: Sequence[TurnRecord]) -> Rollout:
    return Rollout(completion=[], completion_ids=[], turns=list(turns))


def _fitting(samples: Mapping[int, SampleFacts], sequences: Sequence[TokenSequence]) -> dict[int, SampleFacts]:
    """The samples by sequence; values by token are left out where they are not as many as the trained tokens."""

    def fits(values: list[float] | None, number: int) -> bool:
        return values is not None and number < len(sequences) and len(values) == sequences[number].num_trained

    return {
        number: replace(
            sample,
            log_probs=sample.log_probs if fits(sample.log_probs, number) else None,
            entropies=sample.entropies if fits(sample.entropies, number) else None,
        )
        for number, sample in samples.items()
    }


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _context(token_ids: Sequence[int], pieces: Pieces) -> list[TokenFacts]:
    texts = pieces(token_ids)
    return [TokenFacts(token_id=one, text=text, trained=False) for one, text in zip(token_ids, texts, strict=True)]


def _output(
    turn: TurnRecord, sequence: TokenSequence, sample: SampleFacts | None, pieces: Pieces
) -> Iterator[TokenFacts]:
    start = len(sequence.tokens) - len(turn.output_ids)
    number = sum(sequence.trained[:start])
    leading = turn.prompt_ids[-LEADING_TOKENS:]
    texts = pieces([*leading, *turn.output_ids])[len(leading) :]
    for place, token_id in enumerate(turn.output_ids):
        trained = sequence.trained[start + place]
        sampler = turn.output_log_probs[place] if turn.output_log_probs else None
        learner = sample.log_probs[number] if trained and sample and sample.log_probs else None
        yield TokenFacts(
            token_id=token_id,
            text=texts[place],
            trained=trained,
            sampler_logprob=sampler,
            learner_logprob=learner,
            ratio=_ratio(learner, sampler),
            entropy=sample.entropies[number] if trained and sample and sample.entropies else None,
            advantage=sample.advantage if trained and sample else None,
            version=turn.output_versions[place] if turn.output_versions else None,
            alternatives=_alternatives(turn, place, pieces),
        )
        number += trained


def _ratio(learner: float | None, sampler: float | None) -> float | None:
    if learner is None or sampler is None:
        return None
    log_ratio = learner - sampler
    if math.isnan(log_ratio):
        return math.nan
    return math.exp(max(-LARGEST_LOG_RATIO, min(LARGEST_LOG_RATIO, log_ratio)))


def _alternatives(turn: TurnRecord, place: int, pieces: Pieces) -> list[Alternative] | None:
    if turn.output_sampler_logprobs is None:
        return None
    given = sorted(turn.output_sampler_logprobs[place].items(), key=lambda item: -item[1])
    return [Alternative(token_id=one, text=pieces.alone(one), logprob=logprob) for one, logprob in given]
