"""A model's shape from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.runs.memory.shape import ModelShape, read_shape
from tests.runs.made import a_model


def shape_of(folder: Path) -> ModelShape:
    found = read_shape(ModelSection(path=str(folder)))
    assert found is not None
    return found


def test_weights_are_counted_and_widths_read(tmp_path: Path):
    assert shape_of(a_model(tmp_path)) == ModelShape(
        num_weights=100 * 32 + 48 * 32 + 32,
        largest_weight=3200,
        layers=2,
        hidden=32,
        queries=32,
        keys=16,
        inner=48,
        vocabulary=100,
        linear_inputs=48 + 32,
    )


def test_of_experts_those_count_that_a_token_is_sent_to(tmp_path: Path):
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    assert shape_of(a_model(tmp_path, **experts)).inner == 48
    assert shape_of(a_model(tmp_path, **experts, shared_expert_intermediate_size=40)).inner == 88


def test_of_a_model_that_sees_images_the_text_model_is_read(tmp_path: Path):
    assert shape_of(a_model(tmp_path, text_config={"hidden_size": 64, "head_dim": 8})).hidden == 64


@pytest.mark.parametrize("path", ["nobody/nothing", "./no-folder-of-mine"])
def test_of_a_model_that_is_not_here_nothing_is_known(path: str):
    assert read_shape(ModelSection(path=path)) is None


def test_of_a_config_of_another_kind_nothing_is_known(tmp_path: Path):
    folder = a_model(tmp_path)
    (folder / "config.json").write_text('{"n_embd": 32}')
    assert read_shape(ModelSection(path=str(folder))) is None
