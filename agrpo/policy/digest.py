"""The digest of a policy: two policies with one digest have the same weights, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agrpo.tensors import digest_of, digest_of_tensor, owned_tensors

if TYPE_CHECKING:
    from torch import nn

__all__ = ["digest_of", "tensor_digests"]


def tensor_digests(model: nn.Module) -> dict[str, str]:
    """Digest by tensor: parameters and persistent buffers, a tied weight once. `digest_of` makes one of them."""
    return {name: digest_of_tensor(tensor) for name, tensor in owned_tensors(model).items()}
