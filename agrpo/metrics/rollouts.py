"""Rollouts: how the groups of a step came about (A-307 to A-312, A-315 to A-317, A-319), over all consumed groups."""

from __future__ import annotations

from agrpo.metrics import StepFacts, mean, ratio


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Turns and samples are of the rollouts that have an answer; a duration has every rollout.

    The rate is over the step's wall time, so over many steps it is what generation gave per second.
    """
    groups = facts.consumed
    answers = [
        (turns, sequences)
        for group in groups
        for prompted, turns, sequences in zip(
            group.num_prompt_tokens, group.num_turns, group.num_sequences, strict=True
        )
        if prompted
    ]
    generated = sum(length for group in groups for length in group.num_completion_tokens)
    return {
        "rollout/duration_s": mean(seconds for group in groups for seconds in group.duration_seconds),
        "rollout/generated_tokens_per_s": ratio(generated, facts.timings.step_seconds),
        "rollout/turns_mean": mean(turns for turns, _ in answers),
        "rollout/turns_max": max((turns for turns, _ in answers), default=None),
        "rollout/samples_per_rollout": mean(sequences for _, sequences in answers),
        "rollout/failed_count": sum(not prompted for group in groups for prompted in group.num_prompt_tokens),
        "rollout/queue_size": facts.plan.num_queued_samples,
        **_pace(facts),
        **_scoring(facts),
    }


def _pace(facts: StepFacts) -> dict[str, float | None]:
    """As the generator was doing when it began each group."""
    paces = [group.pace for group in facts.consumed if group.pace]
    waits = [pace.backpressure_seconds for pace in paces if pace.backpressure_seconds is not None]
    return {
        "rollout/concurrency": mean(pace.concurrency for pace in paces),
        "rollout/concurrency_cap": mean(pace.concurrency_cap for pace in paces),
        "rollout/backpressure_s": mean(waits),
    }


def _scoring(facts: StepFacts) -> dict[str, float | None]:
    """As the scorer was doing when it took each group."""
    scorings = [group.scoring for group in facts.consumed if group.scoring]
    return {
        "rollout/score_queue_size": mean(scoring.queue_size for scoring in scorings),
        "rollout/score_s": mean(scoring.seconds for scoring in scorings),
        "rollout/score_wait_s": mean(scoring.wait_seconds for scoring in scorings),
    }
