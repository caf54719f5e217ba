"""Settings of an objective that contradict one another are refused, with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError

SEQUENCES = {"name": "clip", "level": "sequence"}


def build(**tables: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "model": {"path": "somewhere"},
        "prompts": {"name": "files", "path": "prompts.jsonl"},
        "rewards": [{"name": "exact_match"}],
        "stop": {"max_steps": 3},
    }
    return RunConfig.build(resolve(values=whole | tables))


def refused(**tables: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(**tables)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.spec("G-158")
@pytest.mark.parametrize("mode", ["sequence_mask", "sequence_truncate"])
def test_vespo_takes_corrections_of_tokens_alone(mode: str):
    problem = refused(loss={"name": "vespo"}, correction={"mode": mode})
    assert f'"{mode}" gives a whole sample one weight' in problem
    assert f'set "{mode.replace("sequence", "token")}"' in problem
    for kind in ("token_mask", "token_truncate"):
        assert build(loss={"name": "vespo"}, correction={"mode": kind}).correction.mode == kind


@pytest.mark.spec("G-154")
def test_luspo_takes_ratios_of_sequences_alone():
    problem = refused(loss={"name": "clip"}, aggregation={"name": "sequence_sum"})
    assert 'set loss.level = "sequence"' in problem
    assert build(loss=SEQUENCES, aggregation={"name": "sequence_sum"}).loss.level == "sequence"


def test_score_centering_takes_no_correction():
    problem = refused(correction={"mode": "token_mask"})
    assert "bounds the ratio of policy to sampler itself" in problem and 'loss.name = "clip"' in problem


@pytest.mark.spec("K39")
@pytest.mark.parametrize(
    ("written", "meant"),
    [("cisbo", "cispo"), ("sapoo", "sapo"), ("vesp", "vespo"), ("gnpo", "gmpo"), ("clipp", "clip")],
)
def test_misspelt_objective_is_refused_with_the_right_name(written: str, meant: str):
    assert f'did you mean "{meant}"?' in refused(loss={"name": written})


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"correction": {"maximum": 2.0}}, "correction.maximum: bounds a weight, and there is none"),
        ({"correction": {"minimum": 0.5}}, "correction.minimum: bounds a weight, and there is none"),
        (
            {"loss": {"name": "clip"}, "correction": {"mode": "token_mask", "minimum": 2.0, "maximum": 1.0}},
            "correction.minimum = 2: lies above correction.maximum = 1",
        ),
        ({"entropy": {"target": 1.0}}, "entropy.target: says how a coefficient moves, and it is fixed"),
        (
            {"entropy": {"adaptive": True, "coefficient": 0.5, "maximum": 0.1}},
            "entropy.coefficient = 0.5: an adaptive coefficient begins within",
        ),
        ({"entropy": {"coefficent": 0.1}}, 'entropy.coefficent: unknown setting; did you mean "coefficient"?'),
        ({"masks": {"top_entropy": 1.5}}, "masks.top_entropy = 1.5"),
        ({"masks": {"off_policy_threshold": 0.0}}, "masks.off_policy_threshold = 0.0"),
        ({"correction": {"mode": "token"}}, "correction.mode = 'token'"),
        ({"loss": {"name": "cispo", "cap": 0.5}}, "loss.cap = 0.5"),
        ({"loss": {"name": "sapo", "temperature_positive": 0.0}}, "loss.temperature_positive = 0.0"),
        ({"loss": {"name": "vespo", "k_positive": -1.0}}, "loss.k_positive = -1.0"),
        ({"loss": {"name": "gmpo", "epsilon": -0.4}}, "loss.epsilon = -0.4"),
        ({"loss": {"name": "clip", "delta": 0.0}}, "loss.delta = 0.0"),
    ],
)
def test_setting_that_would_be_ignored_or_cannot_be_is_refused_by_name(tables: dict[str, Any], message: str):
    assert message in refused(**tables)
