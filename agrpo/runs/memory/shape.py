"""The shape of a model, from its files and without torch: how many weights it has, and how wide its layers are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.config import ModelSection

_WIDTHS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Numbers per token are of the values that one layer computes with."""

    num_weights: int
    largest_weight: int
    """Numbers in the largest tensor."""
    layers: int
    hidden: int
    """Width between layers."""
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together, which is that of the values."""
    inner: int
    """Width inside the feed-forward part, of all experts together that one token is sent to."""
    vocabulary: int
    linear_inputs: int
    """Sum of the widths that the layers' matrices read and give, over all layers: an adapter of rank r has r times as many."""


def read_shape(model: ModelSection) -> ModelShape | None:
    """Of a model that lies here, as a folder or in the hub's cache. None: it does not, or its config is of another kind."""
    folder = _folder(model)
    if folder is None:
        return None
    tensors = tensor_shapes(folder)
    document: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    config = {**document, **(document.get("text_config") or {})}
    if not tensors or not all(isinstance(config.get(name), int) and config[name] > 0 for name in _WIDTHS):
        return None
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    numbers = [math.prod(shape) for shape in tensors.values()]
    return ModelShape(
        num_weights=sum(numbers),
        largest_weight=max(numbers),
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        queries=size * config["num_attention_heads"],
        keys=size * (config.get("num_key_value_heads") or config["num_attention_heads"]),
        inner=_inner(config),
        vocabulary=config["vocab_size"],
        linear_inputs=sum(
            sum(shape)
            for name, shape in tensors.items()
            if len(shape) == 2 and "embed" not in name and "head" not in name
        ),
    )


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the model's files, without reading it. Empty where a file cannot be read."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as stored:
                found |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}
        except (OSError, SafetensorError):
            return {}  # whoever loads the model says what is wrong with it
    return found


def _inner(config: Mapping[str, Any]) -> int:
    dense: int = config.get("intermediate_size") or 4 * config["hidden_size"]
    if not any(config.get(name) for name in _EXPERTS):
        return dense
    each = config.get("moe_intermediate_size") or dense
    return each * (config.get("num_experts_per_tok") or 1) + (config.get("shared_expert_intermediate_size") or 0)


def _folder(model: ModelSection) -> Path | None:
    """Where the model's files lie here."""
    folder = Path(model.path)
    if (folder / "config.json").is_file():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
