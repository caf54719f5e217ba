"""Tiny random models of several families, and samples to train them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.records.sample import Sample, TokenSequence
from agrpo.records.top_tokens import TopTokens

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
DELTA_NET = GROUPED | {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED_EXPERT = EXPERTS | {"shared_expert_intermediate_size": 16}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", GROUPED | {"head_dim": 8, "tie_word_embeddings": True}),
    "llama": ("LlamaConfig", GROUPED),
    "gpt2": ("GPT2Config", GPT2),
    "phi": ("PhiConfig", SHARED),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 6}),
    "phimoe": ("PhimoeConfig", GROUPED | {"num_local_experts": 4, "sliding_window": 16}),
    "doge": ("DogeConfig", GROUPED),
    "phi3": ("Phi3Config", GROUPED),
    "granite": ("GraniteConfig", GROUPED | {"logits_scaling": 4.0}),
    "cohere": ("CohereConfig", GROUPED | {"logit_scale": 0.25, "bos_token_id": 1, "eos_token_id": 2}),
    "gemma2": ("Gemma2Config", GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0}),
    "gemma2_capped": ("Gemma2Config", GEMMA2),
    "gemma3": ("Gemma3TextConfig", GEMMA2 | {"layer_types": ["sliding_attention", "full_attention"]}),
    "qwen3_moe": ("Qwen3MoeConfig", GROUPED | EXPERTS | {"head_dim": 8}),
    "deepseek_v3": ("DeepseekV3Config", GROUPED | LATENT),
    "gpt_oss": ("GptOssConfig", GROUPED | {"head_dim": 8, "num_local_experts": 4}),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA_NET),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", DELTA_NET | SHARED_EXPERT),
    "qwen3_next": ("Qwen3NextConfig", DELTA_NET | SHARED_EXPERT),
    "olmo_hybrid": ("OlmoHybridConfig", {name: value for name, value in DELTA_NET.items() if name != "head_dim"}),
    "lara_mini": ("LaraMiniConfig", DELTA_NET | SHARED_EXPERT),
    "mamba": ("MambaConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "xlstm": ("xLSTMConfig", {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4}),
    "lfm2": ("Lfm2Config", GROUPED | {"layer_types": ["conv", "full_attention"]}),
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
            tokens = torch.randint(0, vocabulary, (length,), generator=generator).tolist()
            top = [{(token + 1) % vocabulary: -2.0, (token + 2) % vocabulary: -3.0} for token in tokens]
            sequence = TokenSequence(
                tokens=tokens,
                trained=[False] * (length - count) + [True] * count,
                sampler_logprobs=[0.0] * (length - count) + [-4.0] * count,
                versions=[0] * length,
                top=TopTokens.of(top[length - count :]),
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
