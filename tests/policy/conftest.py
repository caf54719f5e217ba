"""Tiny random models of several families, and samples to train them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.records.sample import Sample, TokenSequence

SHARED = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
GROUPED = SHARED | {"num_key_value_heads": 2, "pad_token_id": 0}
GPT2: dict[str, Any] = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": 0.3,
}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 1}
GEMMA2 = GROUPED | {"head_dim": 8, "sliding_window": 6}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", GROUPED | {"head_dim": 8, "tie_word_embeddings": True}),
    "llama": ("LlamaConfig", GROUPED),
    "gpt2": ("GPT2Config", GPT2),
    "phi": ("PhiConfig", SHARED),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 6}),
    "granite": ("GraniteConfig", GROUPED | {"logits_scaling": 4.0}),
    "cohere": ("CohereConfig", GROUPED | {"logit_scale": 0.25, "bos_token_id": 1, "eos_token_id": 2}),
    "gemma2": ("Gemma2Config", GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0}),
    "gemma2_capped": ("Gemma2Config", GEMMA2),
    "gpt_oss": ("GptOssConfig", GROUPED | {"head_dim": 8, "num_local_experts": 4}),
    "delta_net": ("Qwen3_5TextConfig", GROUPED | {"head_dim": 8} | DELTA_NET),
    "mixtral": ("MixtralConfig", GROUPED | {"num_local_experts": 4}),
    "bloom": ("BloomConfig", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
}

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def make_model() -> MakeModel:
    """`make_model(family, **settings)`: a random model in fp32, the same at every call."""

    def make(family: str, **settings: Any) -> PreTrainedModel:
        name, values = FAMILIES[family]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return AutoModelForCausalLM.from_config(getattr(transformers, name)(**(values | settings))).eval()

    return make


@pytest.fixture
def make_samples() -> Callable[..., list[Sample]]:
    """`make_samples(lengths, trained=…)`: random samples of these lengths whose last `trained` tokens are trained."""

    def make(lengths: list[int], trained: list[int] | int = 3, vocabulary: int = 64, seed: int = 0) -> list[Sample]:
        generator = torch.Generator().manual_seed(seed)
        each = [trained] * len(lengths) if isinstance(trained, int) else trained
        made: list[Sample] = []
        for number, (length, count) in enumerate(zip(lengths, each, strict=True)):
            sequence = TokenSequence(
                tokens=torch.randint(0, vocabulary, (length,), generator=generator).tolist(),
                trained=[False] * (length - count) + [True] * count,
                sampler_logprobs=[0.0] * (length - count) + [-4.0] * count,
                versions=[0] * length,
            )
            advantage = torch.randn(1, generator=generator).item()
            made.append(
                Sample(
                    ticket=0,
                    rollout_index=number,
                    sequence_index=0,
                    sequence=sequence,
                    advantage=advantage,
                    staleness=0,
                )
            )
        return made

    return make
