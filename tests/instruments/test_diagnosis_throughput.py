"""Who waits for whom: every reading, and its near miss."""

from __future__ import annotations

from typing import Any

import pytest

from agrpo.instruments.diagnosis import Finding, Severity, diagnose
from agrpo.instruments.diagnosis.evidence import Evidence
from tests.instruments.made_points import SETTINGS, Measure, history, read, rules, with_settings

OTHER_LIMITS = ("load_wait", "ceiling_wait", "score_block")
DROPS = with_settings(step={"zero_variance": "drop"})


def flow(
    wait: float, pressure: float | None, queue: float, settings: dict[str, Any] = SETTINGS, **more: float
) -> list[Finding]:
    """Steps of 4 s that take 256 samples: training waits `wait` s, generation `pressure` s for run-ahead.

    Of `load_wait`, `ceiling_wait` and `score_block` it waits so many seconds; the rest are measures as they are.
    """
    held = {"backpressure": pressure, **{name: more.pop(name, 0.0) for name in OTHER_LIMITS}}
    measures: dict[str, Measure] = {
        "perf/step_s": 4.0,
        "perf/rollout_wait_s": wait,
        "rollout/queue_size": queue,
        "rollout/concurrency": more.pop("concurrency", 64.0),
        "rollout/concurrency_cap": more.pop("cap", 512.0),
        **{f"rollout/{name}": value for name, value in more.items()},
    }
    measures |= {f"rollout/{name}_frac": waited / 4.0 for name, waited in held.items() if waited is not None}
    return read(measures, settings)


@pytest.mark.spec("A-110")
def test_waiting_for_the_allowance_alone_is_normal():
    (finding,) = flow(wait=0.2, pressure=0.5, queue=128)
    assert finding == Finding(
        rule="A-110",
        severity=Severity.NOTE,
        title="The staleness limit paces generation",
        reading="Generation waits 0.5 s of every 4.0 s step for leave to run further ahead. Training waits 0.2 s of "
        "every 4.0 s step for scored groups.",
        change="Nothing, where generation is the faster side. To let it run further ahead, raise async.max_staleness (now 2).",
    )
    assert rules(flow(wait=0.2, pressure=0.2, queue=128)) == ["A-116"]
    assert rules(flow(wait=0.79, pressure=0.7, queue=250)) == ["A-110"]
    assert rules(flow(wait=0.8, pressure=0.7, queue=250)) == []


@pytest.mark.spec("A-111")
def test_a_live_cap_below_the_ceiling_is_the_servers_load():
    (finding,) = flow(wait=1.0, pressure=0.0, queue=0, concurrency=122, cap=128)
    assert (finding.rule, finding.severity) == ("A-111", Severity.NOTE)
    assert finding.reading == (
        "122 rollouts are in flight where the live cap is 128 and async.max_concurrent_rollouts is 512. Training waits "
        "1.0 s of every 4.0 s step for scored groups."
    )
    assert rules(flow(wait=1.0, pressure=0.0, queue=0, concurrency=121, cap=128)) == ["A-113"]


@pytest.mark.parametrize(
    ("wait", "change"), [(0.79, "Nothing."), (0.8, "Give the server more memory or another replica.")]
)
def test_a_loaded_server_is_to_be_relieved_only_where_training_waits(wait: float, change: str):
    (finding,) = flow(wait=wait, pressure=0.0, queue=0, concurrency=122, cap=128)
    assert (finding.rule, finding.change) == ("A-111", change)


def test_the_servers_load_is_told_with_the_wait_and_the_cache_and_yields_to_a_longer_wait_for_run_ahead():
    more = {"concurrency": 128, "cap": 128, "vllm_kv_cache_usage_frac": 0.83, "vllm_queued_requests": 3.2}
    (finding,) = flow(wait=1.0, pressure=0.3, queue=0, load_wait=0.3, **more)
    assert finding.reading == (
        "128 rollouts are in flight where the live cap is 128 and async.max_concurrent_rollouts is 512. Generation waits 0.3 s "
        "of every step for a place. The server's KV cache is 83 % full, and 3 requests wait in it. Training waits 1.0 s of "
        "every 4.0 s step for scored groups."
    )
    assert rules(flow(wait=0.0, pressure=0.4, queue=0, load_wait=0.3, **more)) == ["A-110"]


@pytest.mark.spec("A-112")
def test_rollouts_at_the_ceiling_with_room_on_the_server_ask_for_a_higher_one():
    (finding,) = flow(wait=0.8, pressure=0.0, queue=256, concurrency=490, vllm_kv_cache_usage_frac=0.3)
    assert (finding.rule, finding.severity) == ("A-112", Severity.WARNING)
    assert finding.reading == (
        "Training waits 0.8 s of every 4.0 s step for scored groups, while 490 rollouts are in flight where "
        "async.max_concurrent_rollouts is 512. The server's KV cache is 30 % full."
    )
    assert (
        "Raise async.max_concurrent_rollouts (now 512), and engine.batch_rollouts (now 512) with it" in finding.change
    )
    assert flow(wait=0.8, pressure=0.0, queue=256, concurrency=490, vllm_kv_cache_usage_frac=0.6) == []
    assert flow(wait=0.8, pressure=0.0, queue=256, concurrency=486) == []
    assert flow(wait=0.79, pressure=0.0, queue=256, concurrency=490) == []


@pytest.mark.spec("A-113")
def test_an_empty_queue_and_a_waiting_learner_mean_generation_is_slow():
    (finding,) = flow(wait=3.1, pressure=0.0, queue=12, generated_tokens_per_s=8100, score_queue_size=2, concurrency=64)
    assert finding == Finding(
        rule="A-113",
        severity=Severity.WARNING,
        title="Generation-bound: training waits for rollouts",
        reading="Training waits 3.1 s of every 4.0 s step for scored groups; 12 scored samples are queued when a step begins, "
        "which takes 256. Meanwhile the engine generates 8,100 tokens/s, 64 rollouts are in flight, 2 finished groups wait "
        "for scores.",
        change='Give generation more of the machine (engine.threads; or a GPU, with engine.name = "vllm").',
    )
    (finding,) = flow(wait=0.8, pressure=0.7, queue=128)
    assert (finding.rule, finding.severity) == ("A-113", Severity.NOTE)
    assert flow(wait=0.8, pressure=0.7, queue=129) == []


@pytest.mark.spec("A-114")
def test_a_full_queue_and_waiting_groups_mean_training_is_slow():
    measures = {"sample/staleness_mean": 1.9}
    points = history(
        {
            "perf/step_s": 4.0,
            "perf/rollout_wait_s": 0.0,
            "rollout/queue_size": 256.0,
            "rollout/backpressure_frac": 0.625,
            **measures,
        }
    )
    (finding,) = diagnose(points, SETTINGS)
    assert (finding.rule, finding.severity) == ("A-114", Severity.NOTE)
    assert finding.reading == (
        "Generation waits 2.5 s of every 4.0 s step for leave to run further ahead; 256 scored samples are queued when "
        "a step begins, which takes 256. Samples are 1.9 updates old when they are trained; the limit is 2."
    )
    assert "async.max_staleness (now 2)" in finding.change
    assert rules(flow(wait=0.0, pressure=2.5, queue=255)) == ["A-110"]
    assert rules(flow(wait=0.0, pressure=0.79, queue=256)) == ["A-110"]


@pytest.mark.spec("A-115")
def test_two_high_waits_mean_the_allowance_is_too_tight():
    (finding,) = flow(wait=0.8, pressure=0.8, queue=0)
    assert (finding.rule, finding.severity) == ("A-115", Severity.NOTE)
    assert finding.reading == (
        "Training waits 0.8 s of every 4.0 s step for scored groups, and yet generation waits 0.8 s of it for leave to start: "
        "rollouts in flight use up the allowance. Meanwhile 64 rollouts are in flight."
    )
    assert finding.change.startswith("Raise async.max_staleness (now 2).")
    assert [finding.severity for finding in flow(wait=2.0, pressure=0.8, queue=0)] == [Severity.WARNING]
    assert rules(flow(wait=0.8, pressure=0.79, queue=0)) == ["A-113"]


@pytest.mark.parametrize("limit", OTHER_LIMITS)
def test_the_allowance_is_not_too_tight_where_another_limit_holds_generation_longer(limit: str):
    def told(seconds: float) -> list[str]:
        return rules(flow(wait=2.0, pressure=1.0, queue=0, duration_s=0.5, **{limit: seconds}))

    assert told(1.0) == ["A-115"]
    assert told(1.01) == ["agrpo/scoring-bound" if limit == "score_block" else "A-113"]


@pytest.mark.spec("A-116")
def test_two_waits_near_zero_are_balance():
    (finding,) = flow(wait=0.2, pressure=0.0, queue=100)
    assert (finding.rule, finding.severity) == ("A-116", Severity.GOOD)
    assert finding.reading == "Training waits 0.20 s and generation 0.00 s of every 4.0 s step."
    assert flow(wait=0.21, pressure=0.0, queue=100) == []


def test_lockstep_waits_by_design():
    settings = with_settings(**{"async": {"max_staleness": 0}})
    (finding,) = flow(wait=3.0, pressure=3.0, queue=0, settings=settings)
    assert (finding.rule, finding.severity) == ("agrpo/lockstep", Severity.NOTE)
    assert finding.reading.startswith("Training waits 3.0 s of every 4.0 s step for scored groups.")
    assert flow(wait=0.79, pressure=3.0, queue=0, settings=settings) == []


def test_the_first_step_of_an_attempt_is_no_reading_of_throughput():
    measures = {"perf/step_s": 1.0, "rollout/backpressure_frac": 0.0, "rollout/queue_size": 0.0}
    slow_start = {"perf/rollout_wait_s": lambda step: 60.0 if step in (1, 15) else 0.0}
    points = history({**measures, **slow_start}, steps=20, attempt=lambda step: int(step >= 15))
    assert rules(diagnose(points, SETTINGS)) == ["A-116"]


def test_waits_that_nobody_measured_say_nothing():
    assert read({"perf/step_s": 4.0, "rollout/queue_size": 0.0}) == []
    assert flow(wait=0.0, pressure=None, queue=0) == []
    assert read({"perf/step_s": 4.0, "perf/rollout_wait_s": lambda step: 3.0 if step > 31 else None}) == []


def test_the_bounds_of_a_warning_and_of_a_full_cache():
    assert [finding.severity for finding in flow(wait=2.0, pressure=0.0, queue=0)] == [Severity.WARNING]
    assert [finding.severity for finding in flow(wait=1.9, pressure=0.0, queue=0)] == [Severity.NOTE]
    ceiling = {"wait": 0.8, "pressure": 0.0, "queue": 256, "concurrency": 490}
    assert rules(flow(**ceiling, vllm_kv_cache_usage_frac=0.59)) == ["A-112"]


def test_groups_that_wait_longer_for_scores_than_for_the_engine_mean_slow_rewards():
    def scored(waited: float) -> list[Finding]:
        return flow(wait=3.0, pressure=0.0, queue=0, duration_s=1.5, score_wait_s=waited, score_s=0.5)

    (finding,) = scored(2.5)
    assert (finding.rule, finding.severity) == ("agrpo/scoring-bound", Severity.WARNING)
    assert finding.reading == (
        "Training waits 3.0 s of every 4.0 s step for scored groups. Meanwhile 64 rollouts are in flight. A rollout takes 1.5 s, "
        "its group then waits 2.5 s for scores, which take 0.5 s."
    )
    assert finding.change.startswith(
        "Make the rewards faster ([[rewards]]): a group takes 1.5 s to generate and 3.0 s to score."
    )
    assert rules(scored(1.01)) == ["agrpo/scoring-bound"]
    assert rules(scored(1.0)) == ["A-113"]
    assert rules(flow(wait=0.0, pressure=0.0, queue=0, duration_s=0.1, score_wait_s=2.5)) == ["A-116"]
    assert rules(flow(wait=3.0, pressure=0.0, queue=0, duration_s=0.1, score_wait_s=0.8)) == ["A-113"]


def test_a_full_scoring_queue_means_slow_rewards_whatever_a_rollout_takes():
    settings = with_settings(**{"async": {"scoring_queue": 16}})
    (finding,) = flow(wait=0.8, pressure=0.0, queue=0, settings=settings, duration_s=9.0, score_s=0.5, score_block=0.8)
    assert finding.rule == "agrpo/scoring-bound"
    assert "Generation waits 0.8 s of it: async.scoring_queue (now 16) is full." in finding.reading
    below = flow(wait=0.8, pressure=0.0, queue=0, settings=settings, duration_s=9.0, score_s=0.5, score_block=0.79)
    assert rules(below) == ["A-113"]


def test_a_learner_with_little_to_train_waits_without_a_warning():
    measures = {"perf/step_s": 4.0, "perf/rollout_wait_s": 3.0, "rollout/queue_size": 0.0}
    (finding,) = read({**measures, "batch/samples_per_step": 127.0}, DROPS)
    assert (finding.rule, finding.severity) == ("A-113", Severity.NOTE)
    assert finding.reading.endswith("Steps are short: 50 % of the samples are trained.")
    (finding,) = read({**measures, "batch/samples_per_step": 128.0}, DROPS)
    assert (finding.severity, finding.reading.endswith("which takes 256.")) == (Severity.WARNING, True)


def test_throughput_is_no_matter_where_hardly_anything_is_trained():
    measures = {"perf/step_s": 4.0, "perf/rollout_wait_s": 3.0, "rollout/queue_size": 0.0}
    assert read({**measures, "batch/samples_per_step": 63.0}, DROPS) == []
    assert rules(read({**measures, "batch/samples_per_step": 64.0}, DROPS)) == ["A-113"]


def test_a_step_that_replaces_most_groups_is_long_for_that_reason():
    measures = {
        "perf/step_s": 4.0,
        "perf/rollout_wait_s": 3.0,
        "rollout/queue_size": 0.0,
        "batch/samples_per_step": 40.0,
    }
    findings = read({**measures, "frac_zero_std_groups": 0.5})
    (finding,) = [finding for finding in findings if finding.rule == "A-113"]
    assert finding.severity is Severity.NOTE
    assert finding.reading.endswith("Steps are long: 50 % of the generated groups were set aside (equal rewards).")
    assert "a faster engine would only replace groups faster" in finding.change
    findings = read({**measures, "frac_zero_std_groups": 0.49})
    assert "were set aside" not in findings[0].reading


def test_a_step_whose_prompts_were_mostly_left_out_says_little_of_what_was_set_aside():
    evidence = Evidence(
        history=history(
            {
                "frac_zero_std_groups": lambda step: 1.0 if step % 2 else 0.0,
                "rollout/unasked_count": lambda step: 24.0 if step % 2 else 0.0,
            },
            steps=5,
        ),
        size=5,
        settings=SETTINGS,
    )
    # Of steps 2 to 5, which asked 32, 8, 32 and 8 prompts.
    assert evidence.set_aside == pytest.approx(16 / 80)
    assert evidence.samples_per_step == 8 * 80 / 4


def test_slow_scores_come_before_a_tight_allowance():
    assert rules(flow(wait=3.0, pressure=1.0, queue=0, duration_s=0.1, score_s=4.0)) == ["agrpo/scoring-bound"]
    assert rules(flow(wait=3.0, pressure=1.0, queue=0, duration_s=0.1, score_s=3.9)) == ["A-115"]


def test_only_the_settings_that_bind_are_to_be_changed():
    def change(batch: int, cut: float) -> str:
        measures = {
            "perf/step_s": 4.0,
            "perf/rollout_wait_s": 3.0,
            "rollout/queue_size": 0.0,
            "rollout/concurrency": 96.0,
        }
        (finding,) = read(
            {**measures, "completions/clipped_ratio": cut}, with_settings(engine={"batch_rollouts": batch})
        )
        return finding.change

    assert change(96, 0.05) == (
        'Give generation more of the machine (engine.threads, engine.batch_rollouts (now 96); or a GPU, with engine.name = "vllm"), '
        "or less to do: engine.max_completion_length (now 64), which cuts 5.0 % of the completions."
    )
    assert change(512, 0.009) == (
        'Give generation more of the machine (engine.threads; or a GPU, with engine.name = "vllm").'
    )
