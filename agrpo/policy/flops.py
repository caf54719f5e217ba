"""FLOPs: the arithmetic that a model needs for a row, forward and backward (A-356).

Counted as in PaLM (arXiv:2204.02311, appendix B): two FLOPs for each weight and token forward, twice as many backward.
Attention is counted by the pairs of tokens that see each other. What is computed twice (activation checkpointing, the
head, kernels that keep no scores) counts once; embeddings, norms and other work on single numbers do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from agrpo.records.batch import Row

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

FAMILIES = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "smollm3",
    }
)
"""Types of (text) models whose layers are those that are counted here. Of others nothing is said."""
FORWARD, THROUGH, OWN_GRADIENT = 2, 2, 2
"""FLOPs of a weight and a token: forward, the gradient of its input, and its own gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What a model computes for a token, a pair of tokens and a predicted position. Of one forward pass and its backward."""

    per_token: int
    """FLOPs of the layers' weights; of experts, those that one token is sent to. Linear attention included."""
    per_prediction: int
    """FLOPs of the output head for a position that predicts trained tokens."""
    per_pair: int
    """FLOPs of one attention layer for a token and one that it sees, itself included."""
    windows: Mapping[int | None, int]
    """Number of attention layers by how many tokens back they see; None: all."""

    def flops(self, row: Row) -> int:
        """Of the row's forward and backward. A position counts once, however many samples share it."""
        seen = row.positions + 1
        pairs = sum(
            layers * int((seen if window is None else seen.clip(max=window)).sum())
            for window, layers in self.windows.items()
        )
        predicting = len(np.unique(row.index))
        return row.num_tokens * self.per_token + predicting * self.per_prediction + pairs * self.per_pair


def arithmetic_of(model: PreTrainedModel) -> Arithmetic | None:
    """Of the model in training: a frozen weight has no gradient of its own. None: it is of no family that is known."""
    config: Any = model.config.get_text_config()
    head: Any = model.get_output_embeddings()
    if config.model_type not in FAMILIES or not isinstance(head, nn.Linear):
        return None
    decoder: Any = model.get_decoder()
    kinds = _layer_kinds(config)
    recurrent = kinds["linear_attention"]
    weights = sum(_flops_of(weight) * active for weight, active in _weights(decoder, _active_share(config)))
    return Arithmetic(
        per_token=round(weights) + (recurrent * _delta_rule(config) if recurrent else 0),
        per_prediction=_flops_of(head.weight),
        per_pair=_pair(config),
        windows=_windows(config, kinds),
    )


def _weights(decoder: nn.Module, share: float) -> Iterator[tuple[Tensor, float]]:
    """Every weight that tokens are multiplied with, and which share of it one token meets."""
    for module in decoder.modules():
        if isinstance(module, nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            if weight.ndim >= 2:
                yield weight, share if weight.ndim == 3 and hasattr(module, "num_experts") else 1.0


def _flops_of(weight: Tensor) -> int:
    return weight.numel() * (FORWARD + THROUGH + (OWN_GRADIENT if weight.requires_grad else 0))


def _active_share(config: Any) -> float:
    """Which share of its experts a token is sent to."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    return config.num_experts_per_tok / experts if experts else 1.0


def _layer_kinds(config: Any) -> Counter[str]:
    given: list[str] | None = getattr(config, "layer_types", None)
    if given is not None:
        return Counter(given)
    slides = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return Counter({"sliding_attention" if slides else "full_attention": config.num_hidden_layers})


def _windows(config: Any, kinds: Counter[str]) -> dict[int | None, int]:
    found: dict[int | None, int] = {None: kinds["full_attention"]}
    if kinds["sliding_attention"]:
        found[config.sliding_window] = kinds["sliding_attention"]
    return found


def _pair(config: Any) -> int:
    """Score and weighted value of every head, and their gradients by both factors."""
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 3 * 2 * config.num_attention_heads * (size + size)


def _delta_rule(config: Any) -> int:
    """Of a token in one layer of gated DeltaNet (arXiv:2412.06464): the state of every value head is read, corrected and asked.

    As the recurrence has it; the chunked form, which is what runs, takes about twice that.
    """
    state = config.linear_key_head_dim * config.linear_value_head_dim
    return 3 * 3 * 2 * config.linear_num_value_heads * state
