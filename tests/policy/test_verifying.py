from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from agrpo.errors import MissingPackage, ModelError
from agrpo.policy import deltanet, verifying
from agrpo.policy.attention import Layout, layout
from agrpo.policy.attention.varlen import ON_AMD, ON_BLACKWELL, ON_NVIDIA, HubKernel
from agrpo.policy.verifying import (
    refuse_capped_scores,
    refuse_changing_positions,
    refuse_unknown_layers,
    row_of,
    verify_packing,
)

MakeModel = Callable[..., PreTrainedModel]
ATTENTION = [
    "qwen3",
    "qwen3_moe",
    "llama",
    "gpt2",
    "phi",
    "mistral",
    "granite",
    "cohere",
    "gemma2",
    "gemma3",
    "mixtral",
]
HYBRIDS = ["qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid", "lara_mini"]


@pytest.mark.parametrize("family", [*ATTENTION, "gemma2_capped", *HYBRIDS])
def test_packing_is_verified_for_a_family_it_is_right_for(family: str, make_model: MakeModel):
    refuse_unknown_layers(make_model(family))
    verify_packing(make_model(family))


def test_row_that_is_verified_forks_repeats_and_begins_twice(make_model: MakeModel):
    samples = verifying._random_samples(make_model("llama"))
    row = row_of(samples)
    children = np.bincount(row.parents[row.parents >= 0])
    assert (row.parents < 0).sum() == 2 and (children > 1).sum() >= 2
    assert any(one == other for one, other in pairwise(samples))
    assert any(one != other and other[: len(one)] == one for one, other in pairwise(samples))
    assert [row.tokens[at] for at in np.flatnonzero(row.parents < 0)] == sorted({sample[0] for sample in samples})


def one_chain(length: int) -> np.ndarray:
    return np.arange(-1, length - 1)


def as_one_chain(row: Layout) -> Layout:
    return Layout(one_chain(len(row.parents)))


def top_left(row: Layout, batch: layout.Batch, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    unseen = torch.ones(batch.length, batch.depth + batch.length, dtype=torch.bool).triu(1)
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill(unseen, -torch.inf)


PLAIN = {(place, name): getattr(place, name) for place, name in [(layout, "segments_of"), (Layout, "band")]}
PLAIN |= {(deltanet, name): getattr(deltanet, name) for name in ("_levels", "_chains")}
FAULTS: dict[str, tuple[str, object, str, Callable[..., Any]]] = {
    "attention reads on from a sibling": (
        "qwen3",
        layout,
        "segments_of",
        lambda parents: PLAIN[layout, "segments_of"](one_chain(len(parents))),
    ),
    "a segment is causal from its path's first key": ("qwen3", Layout, "band", top_left),
    "a window has no end": (
        "mistral",
        Layout,
        "band",
        lambda row, batch, window, dtype: PLAIN[Layout, "band"](row, batch, None, dtype),
    ),
    "states go on from a sibling": (
        "qwen3_5",
        deltanet,
        "_levels",
        lambda row: PLAIN[deltanet, "_levels"](as_one_chain(row)),
    ),
    "the convolution reaches into a sibling": (
        "qwen3_5",
        deltanet,
        "_chains",
        lambda row, width: PLAIN[deltanet, "_chains"](as_one_chain(row), width),
    ),
}


@pytest.mark.spec("A-146", "A-156")
@pytest.mark.parametrize("fault", FAULTS)
def test_layout_that_is_read_wrongly_is_found_before_the_first_step(
    fault: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
):
    family, place, name, broken = FAULTS[fault]
    model = make_model(family)
    verify_packing(model)
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(ModelError, match=r"read alone and of -\d.*in one row with others \(mean difference"):
        verify_packing(model)


@pytest.mark.spec("A-018")
def test_family_that_carries_state_in_a_way_of_its_own_is_found(make_model: MakeModel):
    with pytest.raises(ModelError, match=r"MambaForCausalLM gives a mean log-prob.*cannot be trained in packed rows"):
        verify_packing(make_model("mamba"))


@pytest.mark.spec("A-018")
def test_hybrid_needs_a_transformers_that_reads_it(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deltanet, "version", lambda package: "5.14.2")
    with pytest.raises(MissingPackage, match=r"need transformers 5\.15 for; 5\.14\.2 is installed: pip install"):
        verify_packing(make_model("qwen3_next"))


def test_hybrid_on_hub_kernels_is_refused(make_model: MakeModel):
    model = make_model("qwen3_next")
    model._use_kernels = True
    with pytest.raises(ModelError, match=r"hub kernels \(use_kernels\)"):
        verify_packing(model)


class OnGpu:
    """As much of a model on a GPU as is asked where there is none."""

    device = torch.device("cuda", 0)

    def __init__(self, model: PreTrainedModel) -> None:
        self.config = model.config


@pytest.mark.spec("A-021")
@pytest.mark.parametrize(("kernel", "refused"), [(ON_AMD, True), (ON_BLACKWELL, True), (ON_NVIDIA, False)])
def test_capped_scores_are_refused_on_a_gpu_whose_kernel_does_not_cap(
    kernel: HubKernel, refused: bool, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verifying, "hub_kernel_of", lambda device: kernel)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    refuse_capped_scores(make_model("gemma2_capped"))
    refuse_capped_scores(OnGpu(make_model("gemma2")))
    model = OnGpu(make_model("gemma2_capped"))
    if not refused:
        return refuse_capped_scores(model)
    with pytest.raises(ModelError, match=rf"attn_logit_softcapping = 50\.0\), which {kernel.name}, .* a GPU"):
        refuse_capped_scores(model)


@pytest.mark.parametrize("window", [16, 2000])
def test_a_window_that_attention_is_not_told_of_is_refused_in_any_type(window: int, make_model: MakeModel):
    model = make_model("phimoe", sliding_window=window).to(torch.bfloat16)
    with pytest.raises(ModelError, match=f"a sliding window of {window} tokens, of which its attention is not told"):
        verify_packing(model)


def test_tokens_behind_a_window_are_compared_by_themselves(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch):
    model = make_model("mistral", sliding_window=200).to(torch.bfloat16)
    with monkeypatch.context() as fault:
        band = Layout.band
        fault.setattr(Layout, "band", lambda row, batch, window, dtype: band(row, batch, None, dtype))
        fault.setitem(verifying.TOLERANCE, torch.bfloat16, 0.15)
        with pytest.raises(ModelError, match="cannot be trained in packed rows"):
            verify_packing(model)
    verify_packing(model)


def test_a_mask_of_the_models_own_is_refused(make_model: MakeModel):
    with pytest.raises(ModelError, match=r"has a mask of its own \(attention_mask\)"):
        verify_packing(make_model("doge"))


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(("family", "positions", "length"), [("phi3", LONGROPE, 32), ("llama", DYNAMIC, 48)])
def test_positions_that_change_with_a_rows_longest_sample_are_refused_where_it_can_be_so_long(
    family: str, positions: dict[str, Any], length: int, make_model: MakeModel
):
    most = 48 if family == "llama" else 128
    settings = {} if family == "llama" else {"original_max_position_embeddings": length}
    model = make_model(family, rope_parameters=positions, max_position_embeddings=most, **settings)
    refuse_changing_positions(model, length)
    with pytest.raises(ModelError, match=rf"more than {length} tokens, and step.micro_tokens = {length + 1}"):
        refuse_changing_positions(model, length + 1)


def test_positions_that_are_each_samples_own_are_taken(make_model: MakeModel):
    refuse_changing_positions(make_model("llama", rope_parameters=YARN, max_position_embeddings=128), 4096)
    refuse_changing_positions(make_model("gpt2"), 4096)
