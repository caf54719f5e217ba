"""A step in one line."""

from __future__ import annotations

from agrpo.metrics.line import progress_line


def test_a_step_is_told_in_one_line_with_what_it_has():
    metrics = {"reward": 0.5, "perf/step_s": 1.25, "batch/row_imbalance": 1.0, "loss": 0.25}
    assert progress_line(3, metrics, 9) == "step 3/9  reward 0.500  loss +0.2500  seconds 1.25"
    assert progress_line(3, {}, None) == "step 3  nothing to train"
