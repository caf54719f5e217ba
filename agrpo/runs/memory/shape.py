"""The shape of a model, from its files and without torch: how many weights it has, and how wide its layers are."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agrpo.config import ModelSection

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_WIDTHS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OUT_OF_REACH = re.compile(
    r"embed|head|\.experts\.|(^|\.)(router|mlp\.gate|block_sparse_moe\.gate)\.weight$"
    r"|(^|\.)(visual|vision_tower|vision_model|multi_modal_projector)\."
)
"""Matrices that no adapter can stand beside: of experts, which are one tensor in memory, of what chooses among them, and of
parts that see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Of a matrix."""

    read: int
    """Numbers that it reads of a token."""
    given: int
    """And gives."""


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
    matrices: Mapping[str, Widths]
    """Layers that an adapter can stand beside, by name."""

    def adapted(self, targets: Sequence[str] | str) -> list[Widths]:
        """Those that `adapter.targets` means: a whole name, or its end after a dot."""
        if isinstance(targets, str):
            return list(self.matrices.values())
        return [
            widths
            for name, widths in self.matrices.items()
            if any(name == target or name.endswith(f".{target}") for target in targets)
        ]


def read_shape(model: ModelSection) -> ModelShape | None:
    """Of a model that lies here, as a folder or in the hub's cache. None: not all of it does, or its config is of another kind."""
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
        matrices={
            name.removesuffix(".weight"): Widths(read=shape[1], given=shape[0])
            for name, shape in tensors.items()
            if len(shape) == 2 and name.endswith(".weight") and not _OUT_OF_REACH.search(name)
        },
    )


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads a model's weights from: one, or those of an index, which may not all be there.

    A folder that has neither is none that it loads; then all are meant. Beside them there may be the same weights in
    another layout (`consolidated.safetensors`).
    """
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    try:
        index = json.loads((folder / INDEX).read_text("utf-8"))
        return [folder / name for name in sorted({*index["weight_map"].values()})]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return sorted(folder.glob("*.safetensors"))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the model's files, without reading it. Empty where a file is absent or cannot be read."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
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
