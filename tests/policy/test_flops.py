"""FLOPs of a row against those that torch counts while it computes, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from agrpo.config import AdapterSection
from agrpo.policy.adapter import add_adapter
from agrpo.policy.flops import FAMILIES, Arithmetic, arithmetic_of
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.verifying import verify_packing
from agrpo.records.batch import Row

LENGTH = 24
SHARED: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED_EXPERT: dict[str, Any] = EXPERTS | {"shared_expert_intermediate_size": 40}
HALF_SLIDES: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
DELTA_NET: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2Config", HALF_SLIDES),
    "gemma3_text": ("Gemma3TextConfig", HALF_SLIDES),
    "granite": ("GraniteConfig", {}),
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 6}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 6, "layer_types": HALF_SLIDES["layer_types"]}),
    "phi3": ("Phi3Config", {"eos_token_id": 1}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2_moe": ("Qwen2MoeConfig", SHARED_EXPERT),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "smollm3": ("SmolLM3Config", {}),
}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", SHARED_EXPERT | DELTA_NET),
    "qwen3_5_text": ("Qwen3_5TextConfig", DELTA_NET),
    "qwen3_next": ("Qwen3NextConfig", SHARED_EXPERT | DELTA_NET),
}
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_vl_text": ("Qwen3VLConfig", {"head_dim": 8}),
    "qwen3_vl_moe_text": ("Qwen3VLMoeConfig", EXPERTS | {"head_dim": 8}),
}


def a_model(family: str, **changes: Any) -> PreTrainedModel:
    kind, own = (CONFIGS | HYBRIDS)[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SHARED | own | changes)
    assert config.model_type == family
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def a_chain(num_predicting: int) -> Row:
    """One sample, the last tokens of which are trained."""
    return a_row(np.arange(LENGTH), np.arange(LENGTH - 1 - num_predicting, LENGTH - 1))


def a_row(positions: np.ndarray, index: np.ndarray) -> Row:
    none = np.zeros(len(index), np.float32)
    return Row(
        tokens=positions + 1,
        positions=positions,
        parents=positions - 1,
        index=index,
        targets=index + 2,
        sample=np.zeros(len(index), np.int64),
        sampler_logprobs=none,
        advantages=none,
        num_samples=1,
    )


def counted(model: PreTrainedModel, row: Row) -> int:
    """FLOPs that torch computes for a plain forward and backward of the row's only sample."""
    return count(model, row).get_total_flops()


def count(model: PreTrainedModel, row: Row) -> FlopCounterMode:
    with FlopCounterMode(display=False) as counter:
        hidden = model.get_decoder()(input_ids=torch.from_numpy(row.tokens)[None], use_cache=False).last_hidden_state
        head: Any = model.get_output_embeddings()
        head(hidden[0, torch.from_numpy(row.index)]).sum().backward()
    return counter


def of_matrices(model: PreTrainedModel, row: Row) -> int:
    """FLOPs of products of two matrices alone, as torch counts them."""
    return matrices_of(count(model, row))


def matrices_of(counter: FlopCounterMode) -> int:
    found = counter.get_flop_counts()["Global"]
    return found[torch.ops.aten.mm] + found.get(torch.ops.aten.addmm, 0)


def known(model: PreTrainedModel) -> Arithmetic:
    found = arithmetic_of(model)
    assert found is not None
    return found


def unseen(arithmetic: Arithmetic, row: Row) -> int:
    """Of pairs that see nothing of each other, which plain attention computes all the same."""
    layers = sum(arithmetic.windows.values())
    per_pairs = (
        arithmetic.flops(row) - row.num_tokens * arithmetic.per_token - len(row.index) * arithmetic.per_prediction
    )
    return row.num_tokens**2 * layers * arithmetic.per_pair - per_pairs


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_needs_what_torch_counts_less_the_pairs_that_see_nothing(family: str):
    model, row = a_model(family), a_chain(10)
    arithmetic = known(model)
    assert counted(model, row) == arithmetic.flops(row) + unseen(arithmetic, row)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_hybrids_matrices_are_counted_as_torch_does_and_its_states_as_the_recurrence_has_it(family: str):
    model, row = a_model(family), a_chain(10)
    # 4 value heads with states of 8 x 16: three products of 2 FLOPs each, and twice as many backward.
    states = 18 * 4 * 8 * 16
    convolution = 6 * model.get_parameter("model.layers.0.linear_attn.conv1d.weight").numel()
    arithmetic = known(model)
    matrices = LENGTH * (arithmetic.per_token - states - convolution) + 10 * arithmetic.per_prediction
    assert of_matrices(model, row) == matrices
    assert arithmetic.windows == {None: 1}


@pytest.mark.parametrize("family", SEEING)
def test_of_a_model_that_sees_images_the_text_model_is_counted(family: str):
    kind, own = SEEING[family]
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 16}
    config = getattr(transformers, kind)(text_config=SHARED | own, vision_config=vision)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    model.config.get_text_config()._experts_implementation = "eager"
    arithmetic, row = known(model), a_chain(10)
    assert model.config.get_text_config().model_type == family
    assert counted(model, row) == arithmetic.flops(row) + unseen(arithmetic, row)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_row_whose_samples_share_tokens_needs_each_token_once(family: str):
    model = a_model(family).eval()
    verify_packing(model)
    # A prompt of 6 tokens, two answers of 3 and 2: the last token of the prompt predicts the first of both.
    row = replace(
        a_row(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 6, 7]), np.array([5, 6, 7, 5, 9])),
        parents=np.array([-1, 0, 1, 2, 3, 4, 5, 6, 7, 5, 9]),
        sample=np.array([0, 0, 0, 1, 1]),
        num_samples=2,
    )
    arithmetic = known(model)
    pairs = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 7 + 8
    assert (
        arithmetic.flops(row)
        == 11 * arithmetic.per_token + 4 * arithmetic.per_prediction + 2 * pairs * arithmetic.per_pair
    )
    # The head reads all five terms, and reads them again in backward.
    with FlopCounterMode(display=False) as counter:
        row_logprobs(model, row, temperature=1.0).logprobs.sum().backward()
    read_again = 5 * (arithmetic.per_prediction + arithmetic.per_prediction // 3)
    assert matrices_of(counter) == pytest.approx(11 * arithmetic.per_token + read_again, rel=1e-4)


def test_of_an_adapter_the_frozen_weights_have_no_gradient_of_their_own():
    model = a_model("llama")
    add_adapter(model, AdapterSection(rank=2), seed=0)
    arithmetic, row = known(model), a_chain(10)
    # torch spares itself the gradients of inputs that nothing before them needs: those of the first layer's projections.
    spared = 2 * LENGTH * 32 * (32 + 2 * 16) + 3 * 2 * 2 * LENGTH * 32
    assert counted(model, row) + spared == arithmetic.flops(row) + unseen(arithmetic, row)


def test_every_family_that_is_counted_is_compared_here():
    assert {*CONFIGS, *HYBRIDS, *SEEING} == FAMILIES


def test_of_an_unknown_family_nothing_is_said():
    model: Any = a_model("llama")
    model.config.model_type = "lama"
    assert arithmetic_of(model) is None
