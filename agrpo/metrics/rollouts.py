"""Rollouts: how the groups of a step came about (A-307 to A-324), over all consumed groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agrpo.metrics import StepFacts, mean, ratio
from agrpo.records.pace import Pace
from agrpo.records.score import NOT_ASKED


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
    drifts = [tokens for group in groups for own in group.drift_tokens for tokens in own]
    generated = sum(length for group in groups for length in group.num_completion_tokens)
    return {
        "rollout/duration_s": mean(seconds for group in groups for seconds in group.duration_seconds),
        "rollout/generated_tokens_per_s": ratio(generated, facts.timings.step_seconds),
        "rollout/turns_mean": mean(turns for turns, _ in answers),
        "rollout/turns_max": max((turns for turns, _ in answers), default=None),
        "rollout/samples_per_rollout": mean(sequences for _, sequences in answers),
        "rollout/fork_frac": mean(tokens > 0 for tokens in drifts),
        "rollout/drift_tokens_mean": mean(drifts),
        "rollout/drift_tokens_max": max(drifts, default=None),
        "rollout/failed_count": sum(not prompted for group in groups for prompted in group.num_prompt_tokens),
        "rollout/unasked_count": sum(bool(group.marks & NOT_ASKED) for group in groups),
        "rollout/queue_size": facts.plan.num_queued_samples,
        **_pace(facts),
        **_servers(facts),
        **_scoring(facts),
    }


def _pace(facts: StepFacts) -> dict[str, float | None]:
    """As the generator was doing when it began each group; a wait is of the groups that waited.

    A generator's waits follow one another, each with one limit, so their sum is how long it was held.
    """
    paces = [group.pace for group in facts.consumed if group.pace]
    seconds = facts.timings.step_seconds * facts.num_generators if paces else 0.0
    return {
        "rollout/concurrency": mean(pace.concurrency for pace in paces),
        "rollout/concurrency_cap": mean(pace.concurrency_cap for pace in paces),
        "rollout/backpressure_s": _mean_wait(pace.backpressure_seconds for pace in paces),
        "rollout/load_wait_s": _mean_wait(pace.load_wait_seconds for pace in paces),
        "rollout/ceiling_wait_s": _mean_wait(pace.ceiling_wait_seconds for pace in paces),
        "rollout/score_block_s": _mean_wait(pace.score_block_seconds for pace in paces),
        "rollout/backpressure_frac": ratio(sum(pace.backpressure_seconds or 0.0 for pace in paces), seconds),
        "rollout/load_wait_frac": ratio(sum(pace.load_wait_seconds or 0.0 for pace in paces), seconds),
        "rollout/ceiling_wait_frac": ratio(sum(pace.ceiling_wait_seconds or 0.0 for pace in paces), seconds),
        "rollout/score_block_frac": ratio(sum(pace.score_block_seconds or 0.0 for pace in paces), seconds),
    }


def _mean_wait(waits: Iterable[float | None]) -> float | None:
    return mean(wait for wait in waits if wait is not None)


def _servers(facts: StepFacts) -> dict[str, float | None]:
    """As the engine's servers said while each group came about; where they said nothing, how often they were asked again."""
    paces = [group.pace for group in facts.consumed if group.pace]
    retries = [pace.retries for pace in paces if pace.retries is not None]
    told = [pace for pace in paces if pace.num_polls]
    return {
        "rollout/vllm_retry_count": sum(retries) if retries else None,
        **(_polled(told) if told else {}),
    }


def _polled(paces: Sequence[Pace]) -> dict[str, float | None]:
    return {
        "rollout/vllm_kv_cache_usage_frac": _over_polls((pace, pace.kv_cache_usage) for pace in paces),
        "rollout/vllm_running_requests": _over_polls((pace, pace.running_requests) for pace in paces),
        "rollout/vllm_queued_requests": _over_polls((pace, pace.queued_requests) for pace in paces),
        "rollout/vllm_preemption_count": sum(pace.preemptions or 0 for pace in paces),
    }


def _over_polls(means: Iterable[tuple[Pace, float | None]]) -> float | None:
    """The mean over all polls, of each group's mean over its own."""
    known = [(pace.num_polls, value) for pace, value in means if value is not None]
    return ratio(sum(polls * value for polls, value in known), sum(polls for polls, _ in known))


def _scoring(facts: StepFacts) -> dict[str, float | None]:
    """As the scorer was doing when it took each group."""
    scorings = [group.scoring for group in facts.consumed if group.scoring]
    return {
        "rollout/score_queue_size": mean(scoring.queue_size for scoring in scorings),
        "rollout/score_s": mean(scoring.seconds for scoring in scorings),
        "rollout/score_wait_s": mean(scoring.wait_seconds for scoring in scorings),
    }
