"""Losses: per-token terms over flat tensors. Aggregation is another part; packing is invisible."""

from __future__ import annotations

from typing import Protocol

from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import Registry


class Loss(Protocol):
    """An objective. Its fields are its knobs."""

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss `[N]`, to be minimised."""
        ...


losses: Registry[Loss] = Registry("agrpo.losses")

__all__ = ["Loss", "losses"]
