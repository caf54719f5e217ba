"""A model's tensors by name, and the digests that tell whether two models hold the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from torch import Tensor, nn


def owned_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers under their state-dict names; a tied weight appears once, under its first."""
    kept = model.state_dict().keys()
    named = dict(model.named_parameters()) | {name: value for name, value in model.named_buffers() if name in kept}
    return {name: tensor.detach() for name, tensor in named.items()}


def digest_of_tensor(tensor: Tensor) -> str:
    """32 hex digits of the tensor's type, shape and bits."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = xxhash.xxh3_128(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(flat.numpy().data)
    return digest.hexdigest()


def digest_of(digests: Mapping[str, str]) -> str:
    """32 hex digits of digests by tensor, whatever their order."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return xxhash.xxh3_128_hexdigest(lines.encode())
