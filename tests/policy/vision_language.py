"""Tiny random vision-language models of several families, as their own classes make them."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
ROTATED_BY_THREE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
EYES = {
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "intermediate_size": 64,
    "patch_size": 4,
    "spatial_merge_size": 2,
}
MARKS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": ROTATED_BY_THREE | {"partial_rotary_factor": 1.0},
}
GEMMA_EYES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
GEMMA_MARKS = {"mm_tokens_per_image": 4, "image_token_index": 60, "boi_token_index": 61, "eoi_token_index": 62}
SEEING: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Qwen2_5_VL": (
        "Qwen2_5_VLConfig",
        {"rope_parameters": ROTATED_BY_THREE},
        EYES | {"fullatt_block_indexes": [0]},
        MARKS,
    ),
    "Qwen3VL": (
        "Qwen3VLConfig",
        {"rope_parameters": ROTATED_BY_THREE},
        EYES | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        MARKS,
    ),
    "Qwen3_5": ("Qwen3_5Config", HYBRID, EYES | {"num_position_embeddings": 16}, MARKS),
    "Gemma3": ("Gemma3Config", {"sliding_window": 6}, GEMMA_EYES, GEMMA_MARKS),
}
"""Name of the configuration's class, and what it says of text, of seeing and of marks in text."""


def seeing(family: str, **text: Any) -> PreTrainedModel:
    """A random model in fp32, the same at every call."""
    name, words, eyes, marks = SEEING[family]
    config = getattr(transformers, name)(text_config=TEXT | words | text, vision_config=eyes, **marks)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
