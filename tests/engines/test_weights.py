"""Weights on their way into the engine: checked first, then copied."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agrpo.config import ModelSection
from agrpo.engines import Engine
from agrpo.engines.decoding.model import load_model
from agrpo.errors import EngineError
from tests.engines.asking import bits_of, group, prompt_of

NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(NORM), f"missing: {NORM}"),
        (lambda tensors: tensors.update(surplus=torch.zeros(2)), "not of this model: surplus"),
        (lambda tensors: tensors.update({NORM: torch.zeros(3)}), rf"of another shape: {NORM} [3] (expected [64])"),
    ],
    ids=["missing", "unexpected", "misshapen"],
)
def test_weights_of_another_model_are_refused_by_name_and_change_nothing(
    serve, changed_weights, change: Callable[[dict[str, Tensor]], object], message: str
):
    requests = group(prompt_of(7), range(3))

    async def body(engine: Engine):
        before = await engine.complete(requests)
        with pytest.raises(EngineError, match=re.escape(message)):
            await engine.load(changed_weights(change), 1)
        return before, await engine.complete(requests)

    before, after = serve(body)
    assert bits_of(before) == bits_of(after)
    assert {version for turn in after for version in turn.output_versions} == {0}


def test_many_wrong_names_are_counted(serve, changed_weights):
    with pytest.raises(EngineError, match="and 16 more"):
        serve(
            lambda engine: engine.load(
                changed_weights(lambda tensors: (tensors.clear(), tensors.update(a=torch.zeros(1)))), 1
            )
        )


@pytest.mark.parametrize("content", [None, b"", b"\x10\x00\x00\x00\x00\x00\x00\x00torn"])
def test_a_file_that_is_absent_or_torn_is_refused(serve, tmp_path: Path, content: bytes | None):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(EngineError, match=f"{tmp_path}/model.safetensors cannot be read"):
        serve(lambda engine: engine.load(tmp_path, 1))


def test_a_tied_weight_may_stand_under_any_of_its_names(serve, changed_weights, tiny_model: Path):
    def renamed(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    requests = group(prompt_of(7), range(3))

    async def body(engine: Engine):
        await engine.load(changed_weights(renamed), 1)
        return await engine.complete(requests)

    assert bits_of(serve(body)) == bits_of(serve(lambda engine: engine.complete(requests)))


def test_weights_are_copied_so_that_the_file_is_not_needed_afterwards(serve, changed_weights):
    folder = changed_weights(lambda tensors: tensors[NORM].mul_(2))
    requests = group(prompt_of(7), range(3))

    async def body(engine: Engine):
        await engine.load(folder, 1)
        before = await engine.complete(requests)
        file = folder / "model.safetensors"
        with file.open("r+b") as stored:
            stored.write(bytes(file.stat().st_size))
        overwritten = await engine.complete(requests)
        file.unlink()
        return before, overwritten, await engine.complete(requests)

    before, overwritten, deleted = map(bits_of, serve(body))
    assert before == overwritten == deleted


def test_every_weight_begins_on_a_line_of_64_bytes_before_and_after_a_load(tiny_model: Path):
    model = load_model(ModelSection(path=str(tiny_model)))
    places = [tensor.data_ptr() for tensor in model._network.parameters()]
    model.load(tiny_model, 0)
    assert places == [tensor.data_ptr() for tensor in model._network.parameters()]
    assert {place % 64 for place in places} == {0}


def test_weights_are_converted_to_the_models_dtype(tiny_model: Path):
    model = load_model(ModelSection(path=str(tiny_model), dtype="bfloat16"))
    model.load(tiny_model, 0)
    assert {tensor.dtype for tensor in model._network.parameters()} == {torch.bfloat16}
