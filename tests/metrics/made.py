"""Facts of a step, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agrpo.metrics import StepFacts, measure_step
from agrpo.records.outcome import RowFacts, SampleOutcome
from agrpo.records.pace import Pace
from agrpo.records.progress import Drop, DropReason, Plan
from agrpo.records.rollout import ToolCall
from agrpo.records.score import Mark, Score, ScoredGroup, Scoring, marks_of, total_rewards
from agrpo.records.timings import StepTimings


def scored(
    ticket: int,
    rewards: Mapping[str, Sequence[float | None]],
    weights: Mapping[str, float] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    seconds: Sequence[float] | None = None,
    pace: Pace | None = None,
    scoring: Scoring | None = None,
    marks: frozenset[Mark] | None = None,
    drifts: Sequence[Sequence[int]] = (),
    calls: Sequence[Sequence[ToolCall]] = (),
    exhausted: Sequence[bool] = (),
    **lists: list[int],
) -> ScoredGroup:
    """A group by what each reward said of it. Rollouts of 3 tokens, a length of 0 being one that failed."""
    size = len(next(iter(rewards.values()), lengths or ()))
    scores = [
        Score(reward=name, weight=(weights or {}).get(name, 1.0), values=list(values), errors=[None] * size)
        for name, values in rewards.items()
    ]
    totals = total_rewards(scores, [None] * size)
    lengths = [3] * size if lengths is None else list(lengths)
    return ScoredGroup(
        ticket=ticket,
        prompt_id=f"p{ticket}",
        model_version=0,
        rewards=totals,
        scores=scores,
        marks=marks_of(totals) if marks is None else marks,
        num_prompt_tokens=[2 if length else 0 for length in lengths],
        num_completion_tokens=lengths,
        num_forwarded_tokens=[length + 2 if length else 0 for length in lengths],
        terminated=[length > 0 for length in lengths],
        duplicates=[False] * size,
        num_turns=lists.get("turns", [1 if length else 0 for length in lengths]),
        num_sequences=lists.get("sequences", [1 if length else 0 for length in lengths]),
        duration_seconds=[0.5] * size if seconds is None else list(seconds),
        drift_tokens=[list(own) for own in drifts] or [[] for _ in lengths],
        tool_calls=[list(own) for own in calls] or [[] for _ in lengths],
        loop_exhausted=list(exhausted) or [False] * size,
        scored_at=100.0 + ticket,
        pace=pace,
        scoring=scoring,
    )


def sample(ticket: int, index: int = 0, *, num_tokens: int = 5, num_trained: int = 3) -> SampleOutcome:
    return SampleOutcome(
        ticket=ticket,
        rollout_index=index,
        sequence_index=0,
        micro_batch=0,
        advantage=1.0,
        staleness=0,
        num_tokens=num_tokens,
        num_trained_tokens=num_trained,
        entropy_mean=1.0,
        logprob_difference_mean=0.0,
        logprob_difference_max=0.0,
        ratio_min=1.0,
        ratio_mean=1.0,
        ratio_max=1.0,
        masked_share=0.0,
        clipped_low_share=0.0,
        clipped_high_share=0.0,
    )


def row(num_samples: int, num_tokens: int, attention_cost: int = 1, *, shared: int = 0, flops: int = 0) -> RowFacts:
    return RowFacts(
        num_samples=num_samples,
        num_tokens=num_tokens,
        attention_cost=attention_cost,
        num_shared_terms=shared,
        flops=flops or None,
    )


def measured(
    consumed: Sequence[ScoredGroup] = (),
    samples: Sequence[SampleOutcome] = (),
    rows: Sequence[RowFacts] = (),
    *,
    drops: Mapping[int, DropReason] | None = None,
    left_out_by: Mapping[int, str] | None = None,
    timings: StepTimings | None = None,
    peak: float | None = None,
    num_generators: int = 1,
    has_tools: bool = False,
    **plan: Any,
) -> dict[str, float]:
    """All measures of a step with micro_tokens = 10, loss 0.5 and gradient norm 2."""
    drops = drops or {}
    facts = StepFacts(
        plan=Plan(
            attempt=0,
            step=1,
            tickets=[group.ticket for group in consumed if group.ticket not in drops],
            drops=[
                Drop(ticket=ticket, reason=reason, left_out_by=(left_out_by or {}).get(ticket))
                for ticket, reason in drops.items()
            ],
            samples=[],
            rows=[],
            num_trained_tokens=sum(one.num_trained_tokens for one in samples),
            version=0,
            learning_rate=0.25,
            seed=0,
            publish=None,
            config_digest="",
            planned_at=104.0,
            **plan,
        ),
        consumed=list(consumed),
        samples=list(samples),
        rows=list(rows),
        micro_tokens=10,
        loss=0.5,
        grad_norm=2.0,
        num_tokens=77,
        timings=timings or StepTimings(step_seconds=4.0),
        has_tools=has_tools,
        peak_flops_per_second=peak,
        num_generators=num_generators,
    )
    return measure_step(facts)


def family(measures: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Those whose name begins so, without the beginning."""
    return {name.removeprefix(prefix): value for name, value in measures.items() if name.startswith(prefix)}
