"""The digest of a policy: two policies of one run with one digest have the same weights, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agrpo.tensors import digest_of, digest_of_tensor, trained_tensors

if TYPE_CHECKING:
    from torch import nn

__all__ = ["digest_of", "tensor_digests"]


def tensor_digests(model: nn.Module) -> dict[str, str]:
    """Digest by tensor of all that training may move. `digest_of` makes one of them.

    Parameters and persistent buffers, a tied weight once; of a model with an adapter the adapter's alone, under the names
    of its file.
    """
    return {name: digest_of_tensor(tensor) for name, tensor in trained_tensors(model).items()}
