"""What metrics say of a step's samples, rows, time and update, worked by hand."""

from __future__ import annotations

import pytest

from agrpo.records.progress import DropReason
from agrpo.records.timings import StepTimings
from tests.metrics.made import family, measured, row, sample, scored

TIMINGS = StepTimings(
    step_seconds=8.0,
    wait_seconds=3.0,
    forward_seconds=0.5,
    backward_seconds=1.5,
    optimizer_seconds=0.25,
    sync_seconds=1.0,
    sync_transfer_seconds=0.5,
    sync_pause_seconds=0.125,
    sync_barrier_seconds=0.25,
    num_syncs=2,
)
GROUPS = [scored(0, {"a": [1.0, 0.0]}), scored(2, {"a": [1.0, 0.0]})]
SAMPLES = [sample(0), sample(0, 1, num_tokens=6, num_trained=4), sample(2, num_tokens=7, num_trained=2)]


@pytest.mark.spec("A-332", "A-333", "A-334")
def test_samples_say_how_long_they_are_and_how_long_they_waited():
    measures = family(measured(GROUPS, SAMPLES), "sample/")
    assert (measures["forwarded_tokens_mean"], measures["forwarded_tokens_max"]) == (6.0, 7.0)
    assert measures["trained_tokens_mean"] == 3.0
    # Planned at 104; the groups were scored at 100 and 102, and two of the samples are of the first.
    assert measures["time_in_queue_s"] == pytest.approx((4 + 4 + 2) / 3)


@pytest.mark.spec("A-340", "A-341", "A-342", "A-343", "A-344", "A-345")
def test_rows_say_how_full_and_how_even_they_are():
    measures = family(measured(GROUPS, SAMPLES, [row(2, 9, 30), row(1, 6, 10)]), "batch/")
    assert measures["forwarded_tokens_per_step"] == 15.0
    assert measures["microbatches_per_step"] == 2.0
    assert measures["samples_per_row"] == 1.5
    assert (measures["row_tokens_mean"], measures["row_tokens_max"]) == (7.5, 9.0)
    assert measures["row_fill_frac"] == pytest.approx(0.75)
    assert measures["row_imbalance"] == 1.5
    assert measures["masked_token_frac"] == pytest.approx(6 / 15)
    # The samples hold 18 tokens: three of them share their place with another.
    assert measures["packing_ratio"] == 1.2


@pytest.mark.spec("A-339", "A-165")
def test_a_micro_batch_has_a_row_of_every_process():
    measures = family(measured(GROUPS, SAMPLES, [row(1, 5), row(1, 6), row(1, 7), row(0, 1)], ranks=2), "batch/")
    assert measures["microbatches_per_step"] == 2.0
    assert measures["samples_per_row"] == 0.75


@pytest.mark.spec("A-348", "A-349", "A-350", "A-351", "A-352", "A-353", "A-354", "A-355")
def test_time_is_told_per_step_and_syncs_per_sync():
    measures = family(measured(GROUPS, SAMPLES, [row(3, 18)], timings=TIMINGS), "perf/")
    assert measures == {
        "step_s": 8.0,
        "fwd_bwd_s": 2.0,
        "fwd_s": 0.5,
        "optimizer_s": 0.25,
        "rollout_wait_s": 3.0,
        "weight_sync_s": 0.5,
        "weight_sync_transfer_s": 0.25,
        "weight_sync_pause_s": 0.0625,
        "weight_sync_barrier_s": 0.125,
        "fwd_bwd_forwarded_tokens_per_s": 9.0,
        "wall_clock_forwarded_tokens_per_s": 2.25,
        "wall_clock_trained_tokens_per_s": 1.125,
    }


@pytest.mark.spec("A-340", "A-345")
def test_a_trained_token_that_samples_share_is_one_token_that_is_not_masked():
    # Two samples of 6 tokens, 4 of them trained, that part at their last: 7 tokens, 5 of them trained.
    twins = [sample(0, place, num_tokens=6, num_trained=4) for place in (0, 1)]
    measures = family(measured(GROUPS, twins, [row(2, 7, shared=3)]), "batch/")
    assert measures["masked_token_frac"] == pytest.approx(2 / 7)
    assert measures["packing_ratio"] == pytest.approx(12 / 7)
    assert measures["trained_tokens_per_step"] == 8.0


@pytest.mark.spec("A-346")
def test_padding_is_what_a_process_forwards_without_a_sample():
    measures = measured(GROUPS, SAMPLES, [row(3, 18), row(0, 1), row(0, 1)])
    assert measures["batch/pad_frac"] == pytest.approx(2 / 20)
    assert measured(GROUPS, SAMPLES, [row(3, 18)])["batch/pad_frac"] == 0.0
    assert "batch/pad_frac" not in measured(GROUPS)


def test_utilisation_is_what_the_rows_needed_of_what_the_devices_could_do():
    rows = [row(2, 12, flops=900), row(1, 6, flops=300)]
    measures = family(measured(GROUPS, SAMPLES, rows, timings=TIMINGS, peak=1000.0), "perf/")
    # 2 s of passes in a step of 8 s.
    assert (measures["fwd_bwd_mfu"], measures["wall_clock_mfu"]) == (0.6, 0.15)


@pytest.mark.parametrize("known", [{"peak": 1000.0}, {"flops": 900}])
def test_utilisation_is_absent_where_the_model_or_the_device_is_unknown(known: dict[str, int]):
    rows = [row(3, 18, flops=known.get("flops", 0))]
    measures = measured(GROUPS, SAMPLES, rows, timings=TIMINGS, peak=known.get("peak"))
    assert not [name for name in measures if name.endswith("mfu")]


def test_an_update_says_its_loss_and_a_step_that_trained_nothing_does_not():
    measures = measured(GROUPS, SAMPLES, [row(3, 18)])
    assert (measures["loss"], measures["grad_norm"], measures["learning_rate"]) == (0.5, 2.0, 0.25)
    assert measures["num_tokens"] == 77.0
    empty = measured(GROUPS, drops={0: DropReason.STALE, 2: DropReason.STALE})
    assert {"loss", "grad_norm", "perf/fwd_bwd_s", "perf/weight_sync_s", "batch/row_imbalance"} & empty.keys() == set()
    assert empty["learning_rate"] == 0.25
    assert empty["batch/forwarded_tokens_per_step"] == empty["perf/wall_clock_trained_tokens_per_s"] == 0.0
