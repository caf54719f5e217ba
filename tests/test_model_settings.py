"""Settings of `[model]` that no setting can see alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.errors import ConfigError
from agrpo.runs.publishing import settled
from tests.test_config import changed, problems


def built(**model: Any) -> RunConfig:
    return RunConfig.build(resolve(values=changed(model=model)))


def test_weights_are_served_in_the_type_of_the_arithmetic():
    assert built().model.served_dtype == "float32"
    assert built(dtype="bfloat16").model.served_dtype == "bfloat16"
    assert built(mixed_precision="bfloat16").model.served_dtype == "bfloat16"
    assert built(mixed_precision="bfloat16").model.dtype == "float32"


@pytest.mark.spec("A-043")
@pytest.mark.parametrize(
    ("said", "expected"), [({"dtype": "bfloat16"}, "bfloat16"), ({"torch_dtype": "float32"}, "float32")]
)
def test_the_type_of_the_checkpoint_is_settled_when_a_run_begins(said: dict[str, str], expected: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = settled(built(dtype="auto", path=str(tmp_path)))
    assert config.model.dtype == config.settings.tree["model"]["dtype"] == expected
    assert settled(config) is config


def test_weights_in_float16_are_trained_by_an_adapter_alone(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "float16"}))
    with pytest.raises(ConfigError, match=r"model\.dtype: weights in float16 are lost.*adapter\.rank = 16"):
        settled(built(dtype="auto", path=str(tmp_path)))
    RunConfig.build(resolve(values=changed(model={"dtype": "float16"}, adapter={"rank": 16})))


@pytest.mark.parametrize(("said", "expected"), [({"dtype": "float8_e4m3fn"}, 'says "float8'), ({}, "says nothing")])
def test_a_checkpoint_in_no_type_to_train_in_is_refused(said: dict[str, str], expected: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=rf'model\.dtype = "auto": .* {expected}.*float32, bfloat16, float16'):
        settled(built(dtype="auto", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"mixed_precision": "float16"}, "model.mixed_precision: gradients in float16 vanish"),
        ({"mixed_precision": "bfloat16", "dtype": "bfloat16"}, 'leave model.dtype ("bfloat16") out'),
        ({"mixed_precision": "float32", "dtype": "bfloat16"}, 'leave model.dtype ("bfloat16") out'),
        ({"mixed_precision": "bfloat16", "dtype": "auto"}, 'leave model.dtype ("auto") out'),
        ({"dtype": "float64"}, "model.dtype = 'float64'"),
        ({"dtype": "float16"}, "model.dtype: weights in float16 are lost in their first step"),
    ],
)
def test_a_mixed_precision_that_makes_no_sense_is_refused_by_name(model: dict[str, Any], expected: str):
    assert any(expected in problem for problem in problems(changed(model=model)))
