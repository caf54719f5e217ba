"""Plots: which documented measures share a chart, and in which unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Measures that share a chart."""

    key: str
    title: str
    unit: str
    """Of the vertical axis, with what it measures."""
    measures: tuple[tuple[str, str], ...]
    """Documented name and label of each."""
    suffix: str = ""
    """Unit of the numbers in the caption."""
    log: bool = False
    share: bool = False


LENGTH_SHARES = Plot(
    key="cut", title="Completions cut at the token limit", unit="share of completions", share=True,
    measures=(("completions/clipped_ratio", "cut"),),
)  # fmt: skip
ENTROPY = Plot(
    key="entropy", title="Token entropy", unit="nats per token", suffix="nats", measures=(("entropy", "entropy"),)
)
SAMENESS = Plot(
    key="sameness", title="Sameness", unit="share", share=True,
    measures=(
        ("frac_zero_std_groups", "groups with equal rewards"), ("completions/duplicate_frac", "repeated completions"),
    ),
)  # fmt: skip
RATIO = Plot(
    key="ratio", title="Importance ratio", unit="ratio (logarithmic)", log=True,
    measures=tuple((f"sampling/importance_sampling_ratio/{kind}", kind) for kind in ("mean", "max", "min")),
)  # fmt: skip
LOGPROBS = Plot(
    key="logprobs", title="Log-prob difference of learner and sampler", unit="nats (logarithmic)", suffix="nats", log=True,
    measures=tuple((f"sampling/sampling_logp_difference/{kind}", kind) for kind in ("mean", "max")),
)  # fmt: skip
DIVERGENCE = Plot(
    key="divergence", title="Divergence from the reference policy", unit="nats per token", suffix="nats",
    measures=(("kl", "divergence"),),
)  # fmt: skip
CLIPPING = Plot(
    key="clipping", title="Tokens held back", unit="share of trained tokens", share=True,
    measures=(
        ("clip_ratio/low_mean", "clipped low"), ("clip_ratio/high_mean", "clipped high"),
        ("sampling/masked_mean", "masked"),
    ),
)  # fmt: skip
STALENESS = Plot(
    key="staleness-mean", title="Staleness over the run", unit="weight updates", suffix="updates",
    measures=(("sample/staleness_mean", "mean"), ("sample/staleness_max", "max")),
)  # fmt: skip
WORK = Plot(
    key="work", title="Generator and scorer", unit="seconds", suffix="s",
    measures=(
        ("rollout/duration_s", "a rollout"), ("rollout/score_s", "scoring a group"),
        ("rollout/score_wait_s", "a group's wait for scoring"),
    ),
)  # fmt: skip
PACE = Plot(
    key="pace", title="Throughput", unit="tokens per second", suffix="tokens/s",
    measures=(
        ("rollout/generated_tokens_per_s", "generated"), ("perf/wall_clock_forwarded_tokens_per_s", "forwarded"),
        ("perf/wall_clock_trained_tokens_per_s", "trained"),
    ),
)  # fmt: skip
STEP_TIME = Plot(
    key="step-time", title="Time per step", unit="seconds per step", suffix="s", measures=(("perf/step_s", "step"),)
)
SAMPLE_QUEUE = Plot(
    key="sample-queue", title="Scored samples waiting for the learner", unit="samples", suffix="samples",
    measures=(("rollout/queue_size", "waiting"),),
)  # fmt: skip
SCORE_QUEUE = Plot(
    key="score-queue", title="Finished groups waiting for the scorer", unit="groups", suffix="groups",
    measures=(("rollout/score_queue_size", "waiting"),),
)  # fmt: skip
WAITS = Plot(
    key="waits", title="Waits", unit="seconds", suffix="s",
    measures=(
        ("sample/time_in_queue_s", "a scored sample"), ("perf/rollout_wait_s", "the learner, for samples"),
    ),
)  # fmt: skip
LIMITS = Plot(
    key="limits", title="What held the next group back", unit="seconds", suffix="s",
    measures=(
        ("rollout/backpressure_s", "run-ahead"), ("rollout/load_wait_s", "load cap"),
        ("rollout/ceiling_wait_s", "hard ceiling"), ("rollout/score_block_s", "scoring queue"),
    ),
)  # fmt: skip
CONCURRENCY = Plot(
    key="concurrency", title="Rollouts in flight", unit="rollouts", suffix="rollouts",
    measures=(("rollout/concurrency", "in flight"), ("rollout/concurrency_cap", "cap")),
)  # fmt: skip
KV_CACHE = Plot(
    key="kv-cache", title="KV cache of the fullest server", unit="share in use", share=True,
    measures=(("rollout/vllm_kv_cache_usage_frac", "in use"),),
)  # fmt: skip
REQUESTS = Plot(
    key="requests", title="Requests at the servers", unit="requests", suffix="requests",
    measures=(
        ("rollout/vllm_running_requests", "running"), ("rollout/vllm_queued_requests", "queued"),
        ("rollout/vllm_preemption_count", "preempted"), ("rollout/vllm_retry_count", "asked again"),
    ),
)  # fmt: skip
