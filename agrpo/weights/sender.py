"""What sends weights to the workers of servers: rank 0 of a group whose other ranks are all of those workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agrpo.tensors import published_tensors, tied_head
from agrpo.tensors.whole import Tensors

if TYPE_CHECKING:
    from torch import Tensor, nn


class Servers(Protocol):
    """All servers as one: the calls that a sender makes, in vLLM's own names and bodies."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class Sender(Protocol):
    """One transport."""

    def obstacle(self) -> str | None:
        """Why this process cannot send at all, as the end of a sentence; None: it can. Imports nothing heavy."""
        ...

    def join(self, servers: Servers, *, address: str, port: int, num_workers: int) -> None:
        """Make the group, reached at this address of this machine. Blocks until every worker has joined it."""
        ...

    def send(self, weights: Mapping[str, Tensor]) -> None:
        """Start an update at the servers, send every tensor while they receive, and finish it."""
        ...

    def close(self) -> None:
        """Leave the group. A `join` or `send` that still blocks in another thread comes to its end, where it can."""
        ...


def weights_to_send(model: nn.Module) -> Tensors:
    """What a published folder holds, under its names: every tensor once, an adapter merged, and a tied head by its name too."""
    weights, head = published_tensors(model), tied_head(model)
    named = weights.sources if head is None else {**weights.sources, head.name: weights.sources[head.tied_to]}
    # vLLM packs tensors without gaps, and cannot read a wide number behind an odd number of narrow ones: wide ones go first.
    return Tensors(dict(sorted(named.items(), key=lambda each: -each[1].dtype.itemsize)))
