"""Losses: per-token terms over flat tensors. Aggregation is another part; packing is invisible."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

from agrpo.records.tokens import TokenInputs, TokenLoss
from agrpo.registry import Registry


class Loss(Protocol):
    """An objective. Its fields are its knobs."""

    num_top: ClassVar[int]
    """Most likely tokens of the sampler that it reads at each trained token (`TokenInputs.top`), where a run's file does not
    say how many; 0: it reads none."""
    corrects_itself: ClassVar[bool]
    """Whether it reads `TokenInputs.correction` itself, so that its terms are not multiplied by it."""

    @property
    def level(self) -> Literal["token", "sequence"]:
        """Of its importance ratio, which a penalty is multiplied by."""
        ...

    def __call__(self, tokens: TokenInputs) -> TokenLoss:
        """Per-token loss `[N]`, to be minimised."""
        ...


losses: Registry[Loss] = Registry("agrpo.losses")

__all__ = ["Loss", "losses"]
