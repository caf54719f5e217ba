"""The quickstart's policy: a Qwen3 of two layers and about half a million parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agrpo.quickstart.tokenizer import LONGEST_PROMPT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

POSITIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
NO_POSITIONS: dict[str, Any] = {"rope_type": "linear", "factor": 1e6, "rope_theta": 10000.0}
"""Positions divided by a million turn no vector visibly; only the causal mask still tells the order."""


def make_model(tokenizer: PreTrainedTokenizerBase, *, seed: int, has_positions: bool) -> Qwen3ForCausalLM:
    """A fresh float32 model for `tokenizer`, its weights drawn from `seed`. The global generator is left as it was."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=LONGEST_PROMPT,
        tie_word_embeddings=True,
        # transformers' 0.02 is meant for wide models; a width of 128 learns sooner from larger weights.
        initializer_range=0.08,
        pad_token_id=cast("int", tokenizer.pad_token_id),
        eos_token_id=cast("int", tokenizer.eos_token_id),
        bos_token_id=None,
        rope_parameters=POSITIONS if has_positions else NO_POSITIONS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
