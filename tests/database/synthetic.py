"""Small runs, written through the run folder as the stages write them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from agrpo.metrics import StepFacts, measure_step
from agrpo.queue.run_folder import EventStream, RunFolder, StepKey
from agrpo.records.arrow import group_to_arrow, scored_from_arrow, scored_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.outcome import RowFacts, SampleOutcome
from agrpo.records.pace import Pace
from agrpo.records.progress import (
    Acknowledgement,
    Attempt,
    Base,
    Done,
    Drop,
    DropReason,
    Plan,
    PlannedSample,
    Probe,
    Rewind,
    WeightsReady,
)
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sample import drift_of, sequences_of
from agrpo.records.score import Extra, Mark, Score, ScoredGroup, Scoring, marks_of, total_rewards
from agrpo.records.timings import StepTimings
from agrpo.records.trained_tokens import TrainedTokens, tokens_to_arrow

T0 = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""

MICRO_TOKENS = 10
NUM_GENERATORS = 2
PEAK_FLOPS_PER_SECOND = 32_000.0

TIMINGS = StepTimings(
    step_seconds=4.0,
    wait_seconds=1.0,
    read_seconds=0.125,
    plan_seconds=0.125,
    forward_seconds=0.5,
    backward_seconds=1.0,
    optimizer_seconds=0.25,
    sync_seconds=0.75,
    sync_transfer_seconds=0.375,
    sync_pause_seconds=0.125,
    other_seconds=0.25,
    num_syncs=1,
)


def new_run(
    url: str | Path, every_seconds: float = 0.05, *, topk: bool = False, tools: Sequence[str] = ()
) -> RunFolder:
    tree = {
        "run": {"name": "small"},
        "step": {"micro_tokens": MICRO_TOKENS},
        "workers": {"generators": NUM_GENERATORS},
        "recorder": {"every_seconds": every_seconds, "topk": topk},
        **({"tools": {"functions": list(tools)}} if tools else {}),
    }
    return RunFolder.create(str(url), {"settings": {"tree": tree, "origins": {}}, "config_digest": "c0ffee"})


def a_turn(prompt: list[int], output: list[int], version: int = 0, stop: StopReason = StopReason.STOP) -> TurnRecord:
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=output,
        output_log_probs=[-0.5] * len(output),
        output_versions=[version] * len(output),
        output_sampler_logprobs=[{token: -0.5, 99: -1.5} for token in output],
        stop_reason=stop,
    )


def a_rollout(index: int, output: list[int], *, version: int = 0, stop: StopReason = StopReason.STOP) -> Rollout:
    return Rollout(
        completion=[{"role": "assistant", "content": f"answer {index}"}],
        completion_ids=output,
        turns=[a_turn([7, 8, 9], output, version, stop)],
        rollout_id=f"r{index}",
        index=index,
        seed=100 + index,
        stop_reason=stop,
        duration_seconds=0.25,
    )


def add_group(
    folder: RunFolder,
    ticket: int,
    rollouts: Sequence[Rollout] | None = None,
    *,
    version: int = 0,
    base: int = 0,
    **facts: Any,
) -> None:
    """Claim and publish a group; two rollouts of 3 and 2 tokens if none are given. `facts` are laid over the rest."""
    if rollouts is None:
        rollouts = [a_rollout(0, [5, 6, 1], version=version), a_rollout(1, [4, 1], version=version)]
    folder.claims.take(ticket, owner="generator-a", base=base)
    group = RolloutGroup(
        ticket=ticket,
        prompt=Prompt(id=f"p{ticket}", messages=[{"role": "user", "content": "1+1?"}], facts={"answer": "2"}),
        rollouts=list(rollouts),
        model_version=version,
        base=base,
        generator="generator-a",
        claimed_at=T0 + ticket,
        finished_at=T0 + ticket + 1,
        pace=Pace(
            concurrency=4 + ticket,
            concurrency_cap=16,
            backpressure_seconds=0.5 * ticket if ticket % 2 else None,
            interval_seconds=0.25,
        ),
    )
    folder.groups.publish(ticket, group_to_arrow(replace(group, **facts)))


def add_scores(
    folder: RunFolder,
    ticket: int,
    values: Mapping[str, Sequence[float | None]] | None = None,
    weights: Mapping[str, float] | None = None,
    *,
    extras: Mapping[str, Mapping[str, list[Extra]]] | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Score a published group, by reward name; "correct" gives 1 and 0 if nothing is given.

    `extras`, `metrics`: what each reward noted.
    """
    from agrpo.records.arrow import group_from_arrow

    group = group_from_arrow(folder.groups.read(ticket) or b"")
    scores = [
        Score(
            reward=name,
            weight=(weights or {}).get(name, 1.0),
            values=list(given),
            errors=["no value" if value is None else None for value in given],
            duration_seconds=0.125,
            extras=dict((extras or {}).get(name, {})),
            metrics=dict((metrics or {}).get(name, {})),
        )
        for name, given in ({} if group.refusal else values or {"correct": [1.0, 0.0]}).items()
    ]
    rewards = total_rewards(scores, group.rollout_rewards)
    marks = frozenset({Mark.FAILED}) if all(rollout.failed for rollout in group.rollouts) else marks_of(rewards)
    if group.refusal is not None:
        marks = frozenset({Mark.FILTERED if group.filtered else Mark.REFUSED_PROMPT})
    scored = ScoredGroup(
        ticket=ticket,
        prompt_id=group.prompt.id,
        model_version=group.model_version,
        model_attempt=group.model_attempt,
        model_step=group.model_step,
        model_ordinal=group.model_ordinal,
        base=group.base,
        rewards=rewards,
        scores=scores,
        marks=marks,
        num_prompt_tokens=[3 if rollout.turns else 0 for rollout in group.rollouts],
        num_completion_tokens=[len(rollout.completion_ids) for rollout in group.rollouts],
        num_forwarded_tokens=[sum(len(own.tokens) for own in sequences_of(rollout)) for rollout in group.rollouts],
        terminated=[rollout.terminated for rollout in group.rollouts],
        duplicates=[False] * len(rewards),
        num_turns=[len(rollout.turns) for rollout in group.rollouts],
        num_sequences=[len(sequences_of(rollout)) for rollout in group.rollouts],
        duration_seconds=[rollout.duration_seconds for rollout in group.rollouts],
        drift_tokens=[drift_of(rollout) for rollout in group.rollouts],
        tool_calls=[rollout.tool_calls for rollout in group.rollouts],
        loop_exhausted=[rollout.stop_reason is StopReason.MAX_TURNS for rollout in group.rollouts],
        generated_at=group.finished_at,
        scored_at=T0 + ticket + 2,
        pace=group.pace,
        scoring=Scoring(seconds=0.125, wait_seconds=0.5 + ticket, queue_size=ticket),
    )
    folder.scored.publish(ticket, scored_to_arrow(scored))


def add_plan(
    folder: RunFolder,
    key: StepKey,
    tickets: Sequence[int],
    drops: Mapping[int, DropReason] | None = None,
    *,
    version: int = 0,
    halved: Collection[int] = (),
    **facts: Any,
) -> Plan:
    """Plan a step that trains rollouts 0 and 1 of each ticket, with advantages 1 and -1; only 0 of `halved` ones.

    `facts` are laid over the rest.
    """
    samples = [
        PlannedSample(ticket=t, rollout_index=i, sequence_index=0, advantage=1.0 - 2.0 * i, staleness=version)
        for t in tickets
        for i in ((0,) if t in halved else (0, 1))
    ]
    plan = Plan(
        attempt=key.attempt,
        step=key.step,
        tickets=list(tickets),
        drops=[Drop(ticket=ticket, reason=reason) for ticket, reason in (drops or {}).items()],
        samples=samples,
        rows=[[number] for number in range(len(samples))],
        num_trained_tokens=sum(3 - sample.rollout_index for sample in samples),
        num_queued_samples=2 * len(tickets),
        version=version,
        learning_rate=1e-3,
        seed=key.step,
        publish=key.step,
        config_digest="c0ffee",
        planned_at=T0 + 10 * key.step,
    )
    plan = replace(plan, **facts)
    folder.write_plan(plan)
    return plan


def add_done(folder: RunFolder, plan: Plan, num_tokens: int = 0, *, timings: StepTimings = TIMINGS) -> Done:
    """Finish a planned step. What the learner logs of it is what it would log."""
    outcomes = [
        _outcome(sample.ticket, sample.rollout_index, sample.advantage, sample.staleness) for sample in plan.samples
    ]
    consumed = [scored_from_arrow(data) for ticket in plan.scored if (data := folder.scored.read(ticket)) is not None]
    total = num_tokens + sum(outcome.num_tokens for outcome in outcomes)
    facts = StepFacts(
        plan=plan,
        consumed=consumed,
        samples=outcomes,
        rows=[
            RowFacts(
                num_samples=1,
                num_tokens=one.num_tokens,
                attention_cost=one.num_tokens * (one.num_tokens + 1) // 2,
                num_shared_terms=one.rollout_index,
                flops=1000 * one.num_tokens,
            )
            for one in outcomes
        ],
        micro_tokens=MICRO_TOKENS,
        loss=0.5,
        grad_norm=2.0,
        num_tokens=total,
        timings=timings,
        has_tools="tools" in folder.document()["settings"]["tree"],
        peak_flops_per_second=PEAK_FLOPS_PER_SECOND,
        num_generators=NUM_GENERATORS,
    )
    done = Done(
        attempt=plan.attempt,
        step=plan.step,
        digest=f"d{plan.step}",
        digests={"w": "0"},
        loss=0.5,
        grad_norm=2.0,
        metrics=measure_step(facts) if len(consumed) == len(plan.scored) else {"loss": 0.5},
        samples=outcomes,
        rows=facts.rows,
        timings=facts.timings,
        peak_flops_per_second=facts.peak_flops_per_second,
        num_tokens=total,
        num_prompts=len(plan.consumed),
        publish=plan.publish,
        empty=plan.empty,
        started_at=T0 + 10 * plan.step,
        finished_at=T0 + 10 * plan.step + 5,
    )
    tokens = [
        TrainedTokens(
            ticket=one.ticket,
            rollout_index=one.rollout_index,
            sequence_index=0,
            log_probs=np.full(one.num_trained_tokens, -0.75, np.float32),
            entropies=np.full(one.num_trained_tokens, one.entropy_mean, np.float32),
        )
        for one in outcomes
    ]
    folder.write_tokens(StepKey(plan.attempt, plan.step), tokens_to_arrow(tokens))
    folder.write_done(done)
    return done


def add_step(folder: RunFolder, attempt: int, step: int, tickets: Sequence[int] = ()) -> None:
    add_done(folder, add_plan(folder, StepKey(attempt, step), tickets))


def add_attempt(
    folder: RunFolder, attempt: int, parent: int | None = None, base_step: int = 0, *, void: bool = False, **facts: Any
) -> None:
    """An attempt and its base. `facts` are laid over the rest of it."""
    folder.write_attempt(Attempt(attempt=attempt, host="h", pid=1, started_at=T0 + attempt))
    base = Base(attempt=attempt, parent=parent, base_step=base_step, adopted_through=base_step, void=void)
    folder.write_base(replace(base, **facts))


def add_rewind(folder: RunFolder, number: int, step: int) -> None:
    """A wish to go back."""
    folder.write_rewind(Rewind(number=number, step=step, asked_at=T0 + 1000 + number))


def add_version(folder: RunFolder, version: int, attempt: int = 0, step: int | None = None) -> None:
    """Weights published after the step, which has the same number if none is given."""
    probe = Probe(token_ids=[1], top_ids=[2], top_logprobs=[-0.5])
    folder.write_version(
        WeightsReady(
            version=version,
            attempt=attempt,
            step=version if step is None else step,
            digest=f"d{version}",
            folder=f"weights/{version}",
            probe=probe,
            published_at=T0,
        )
    )


def add_acknowledgement(folder: RunFolder, version: int, engine: str = "generator-a") -> None:
    folder.write_acknowledgement(
        Acknowledgement(engine=engine, version=version, acknowledged_at=T0, probe_difference=0.001)
    )


def small_run(url: str | Path) -> RunFolder:
    """Everything a run writes, a little of each: 4 groups, 2 steps, a dropped group, a version, an ack, two events."""
    folder = new_run(url)
    add_attempt(folder, 0)
    for ticket in range(4):
        add_group(folder, ticket)
        add_scores(folder, ticket)
    total = add_done(folder, add_plan(folder, StepKey(0, 1), [0])).num_tokens
    add_done(folder, add_plan(folder, StepKey(0, 2), [1], {2: DropReason.STALE}, version=1), total)
    add_version(folder, 1)
    add_acknowledgement(folder, 1)
    events = EventStream(folder, "learner-a")
    events.write("started", attempt=0)
    events.write("odd", text="half a pair \ud800", number=math.nan)
    return folder


def contents(path: Path) -> dict[str, list[str]]:
    """Every table's rows as sorted text."""
    with duckdb.connect(str(path), read_only=True) as connection:
        names = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()]
        return {name: sorted(map(repr, connection.execute(f"FROM {name}").fetchall())) for name in names}


def _outcome(ticket: int, index: int, advantage: float, staleness: int) -> SampleOutcome:
    """Different for every rollout, so that a mean over the wrong rows shows."""
    shift = 0.01 * ticket + 0.1 * index
    return SampleOutcome(
        ticket=ticket,
        rollout_index=index,
        sequence_index=0,
        micro_batch=0,
        advantage=advantage,
        staleness=staleness,
        num_tokens=6 - index,
        num_trained_tokens=3 - index,
        entropy_mean=1.0 + shift,
        logprob_difference_mean=0.01 + shift,
        logprob_difference_max=0.5 + shift,
        ratio_min=0.5 - shift,
        ratio_mean=1.0 + shift,
        ratio_max=1.5 + shift,
        masked_share=0.25 * index,
        clipped_low_share=0.5 * index,
        clipped_high_share=0.5 - 0.5 * index,
        sampler_mass=0.75 - shift,
        kl=0.125 * (1 + index),
    )
