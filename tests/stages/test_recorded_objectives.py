"""What each objective has to say of a step: logged and asked for alike, and absent where it has nothing to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.database.queries import query
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged, logged, recorded_run

OBJECTIVES: dict[str, dict[str, Any]] = {
    "cispo": {"loss": {"name": "cispo", "cap": 1.0}, "entropy": {"coefficient": 0.01}},
    "vespo": {"loss": {"name": "vespo"}, "correction": {"mode": "token_truncate", "maximum": 1.1}},
    "gspo": {
        "loss": {"name": "clip", "level": "sequence", "epsilon": 1e-4},
        "aggregation": {"name": "sequence_mean"},
        "masks": {"top_entropy": 0.5, "off_policy_threshold": 0.5},
    },
}
CORRECTED: dict[str, Any] = {"loss": {"name": "clip"}, "correction": {"mode": "sequence_mask", "maximum": 1.1}}
SAID = {
    "cispo": {"cispo_clip_ratio", "policy_loss", "entropy_coef"},
    "vespo": {"vespo/phi_seq_mean"},
    "gspo": {"clip_ratio/region_mean", "clip_ratio/low_min"},
}
"""Of all that some objective says, what each one does."""


@pytest.mark.spec("K23", "G-249", "G-251", "G-253", "G-256", "G-261", "G-262")
@pytest.mark.parametrize("name", ["cispo", "vespo", pytest.param("gspo", marks=pytest.mark.slow)])
def test_measures_of_an_objective_equal_sql_over_the_steps_rows(name: str, tiny_model: Path, tmp_path: Path):
    folder = recorded_run(
        tiny_model,
        tmp_path,
        ["plain"] * 6,
        asynchronous={"max_staleness": 1},
        engine={"max_completion_length": 3},
        optimizer={"learning_rate": 3e-2},
        stop={"max_steps": 3},
        **OBJECTIVES[name],
    )
    assert_sql_says_what_was_logged(folder)
    named = {measure for _, measure in logged(folder)}
    assert named & set[str]().union(*SAID.values()) == SAID[name]


@pytest.mark.spec("G-248", "G-249", "G-250")
def test_weights_of_whole_samples_are_measured_by_samples(tiny_model: Path, tmp_path: Path):
    folder = recorded_run(
        tiny_model,
        tmp_path,
        ["plain"] * 6,
        asynchronous={"max_staleness": 1},
        optimizer={"learning_rate": 3e-2},
        stop={"max_steps": 3},
        **CORRECTED,
    )
    assert_sql_says_what_was_logged(folder)
    rows = query(folder.database, "SELECT step, correction_min, correction_mean, correction_max FROM live_samples")
    weights = rows.to_pylist()
    assert all(row["correction_min"] == row["correction_max"] for row in weights)
    assert min(row["correction_min"] for row in weights) == 0.0, "no sample is masked"
    for step in (1, 2, 3):
        own = [row["correction_mean"] for row in weights if row["step"] == step]
        found = {
            kind: logged(folder)[step, f"sampling/importance_sampling_ratio/{kind}"] for kind in ("min", "mean", "max")
        }
        assert found == pytest.approx({"min": min(own), "mean": sum(own) / len(own), "max": max(own)})
