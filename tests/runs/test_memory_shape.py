"""A model's shape from its files alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from agrpo.config import ModelSection
from agrpo.runs.checks import bytes_needed
from agrpo.runs.memory.shape import ModelShape, Widths, read_shape, weight_files
from tests.runs.made import WEIGHTS, a_config, a_model


def shape_of(folder: Path) -> ModelShape:
    found = read_shape(ModelSection(path=str(folder)))
    assert found is not None
    return found


def test_weights_are_counted_and_widths_read(tmp_path: Path):
    assert shape_of(a_model(tmp_path)) == ModelShape(
        num_weights=WEIGHTS,
        largest_weight=3200,
        layers=2,
        hidden=32,
        queries=32,
        keys=16,
        inner=48,
        vocabulary=100,
        matrices={"model.layers.0.mlp.up_proj": Widths(read=32, given=48)},
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


def an_index(folder: Path, *files: str) -> None:
    """That the weights are in these files, which are those of `a_model` under other names."""
    (folder / "model.safetensors").rename(folder / files[0])
    weights = {f"weight_{number}": file for number, file in enumerate(files)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_that_also_lie_there_in_another_layout_are_counted_once(tmp_path: Path, sharded: bool):
    alone = bytes_needed(a_config(tmp_path / "alone"))
    folder = a_model(tmp_path / "model")
    save_file({"tok_embeddings.weight": np.zeros((100, 32), np.float32)}, folder / "consolidated.safetensors")
    if sharded:
        an_index(folder, "model-00001-of-00001.safetensors")
    assert shape_of(folder).num_weights == WEIGHTS
    assert bytes_needed(a_config(tmp_path / "both", folder)) == alone


def test_one_file_is_read_before_an_index_as_transformers_does(tmp_path: Path):
    folder = a_model(tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "old.safetensors"}}')
    assert weight_files(folder) == [folder / "model.safetensors"]


def test_of_a_model_that_is_partly_here_nothing_is_known(tmp_path: Path):
    folder = a_model(tmp_path)
    an_index(folder, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert read_shape(ModelSection(path=str(folder))) is None


def test_an_index_that_cannot_be_read_leaves_all_files(tmp_path: Path):
    folder = a_model(tmp_path)
    an_index(folder, "a.safetensors")
    (folder / "model.safetensors.index.json").write_text("[]")
    assert weight_files(folder) == [folder / "a.safetensors"]


OUT_OF_REACH = [
    "lm_head.weight",
    "model.layers.0.mlp.experts.3.up_proj.weight",
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.router.weight",
    "model.visual.blocks.0.attn.qkv.weight",
    "vision_tower.layers.0.q_proj.weight",
]


def test_no_adapter_stands_beside_experts_routers_heads_and_eyes(tmp_path: Path):
    folder = a_model(tmp_path)
    reached = ["model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"]
    tensors = {name: np.zeros((6, 4), np.float32) for name in [*OUT_OF_REACH, *reached]}
    save_file(tensors | {"model.norm.weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    shape = shape_of(folder)
    assert [f"{name}.weight" for name in shape.matrices] == reached
    assert shape.adapted(["q_proj"]) == [Widths(read=4, given=6)]
    assert len(shape.adapted("all-linear")) == 2
    assert shape.adapted(["proj"]) == []


def test_checkpoints_of_a_reference_that_follows_hold_it_too(tmp_path: Path):
    staying, following = (
        bytes_needed(a_config(tmp_path / name, divergence={"coefficient": 0.1, **more}))
        for name, more in (("staying", {}), ("following", {"sync_steps": 8}))
    )
    size = (tmp_path / "staying" / "model" / "model.safetensors").stat().st_size
    assert following - staying == 3 * size
