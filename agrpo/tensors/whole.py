"""Tensors by name, each made whole when it is asked for, and kept by nobody.

Whoever goes through them holds one at a time, whether a model lies here or its weights are shared out over processes. For
those, the model's `Shards` fetch what is asked for, and bring what is to be filled to where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Shards(Protocol):
    """All shards of a model and its optimizer, seen from the process that decides."""

    def gather(self, name: str, moment: str | None) -> Tensor:
        """A parameter in one piece, or a moment of it."""
        ...

    def scatter(self, name: str, moment: str | None, whole: Tensor) -> None:
        """Fill its shards from one piece."""
        ...

    def reset_moments(self, steps: Mapping[str, float]) -> None:
        """As `moments.reset_moments`, in every process."""
        ...


def share_out(model: nn.Module, shards: Shards) -> None:
    """From now on the model's parameters are shards, and these bring them together."""
    _SHARDS[model] = shards


def shards_of(model: nn.Module) -> Shards | None:
    """None: the model's parameters are whole."""
    return _SHARDS.get(model)


_SHARDS: WeakKeyDictionary[nn.Module, Shards] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a tensor comes from, and what it will be."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]
    fill: Callable[[Tensor], None] | None = None
    """Give it other values. None: it is derived from others, and cannot be filled."""

    @classmethod
    def here(cls, tensor: Tensor) -> Source:
        """One that lies in this process."""
        return cls(
            dtype=tensor.dtype, shape=tuple(tensor.shape), make=lambda: tensor, fill=lambda whole: _copy(tensor, whole)
        )

    @classmethod
    def shared_out(cls, tensor: Tensor, shards: Shards, name: str, moment: str | None = None) -> Source:
        """A parameter, or a moment of it, of which `tensor` is this process's share."""
        return cls(
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            make=lambda: shards.gather(name, moment),
            fill=lambda whole: shards.scatter(name, moment, whole),
        )

    def then(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Source:
        """One that is derived from it, of the same shape. `dtype`: where it has another."""
        return Source(dtype=dtype or self.dtype, shape=self.shape, make=lambda: change(self.make()))


class Tensors(Mapping[str, "Tensor"]):
    """A mapping whose every look makes the tensor. Go through `items()` once, rather than ask for one twice."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources
        """Type and shape are known without making anything."""

    def __getitem__(self, name: str) -> Tensor:
        return self.sources[name].make()

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __contains__(self, name: object) -> bool:
        return name in self.sources

    def only(self, names: Iterable[str]) -> Tensors:
        """Those of these names, in that order."""
        return Tensors({name: self.sources[name] for name in names})

    def fill(self, name: str, whole: Tensor) -> None:
        """Give a tensor other values, wherever it lies."""
        fill = self.sources[name].fill
        assert fill is not None, f"{name} is derived from other tensors, and cannot be filled"
        fill(whole)


def sources_of(tensors: Mapping[str, Tensor]) -> Mapping[str, Source]:
    """Of whatever tensors, lying here or not."""
    if isinstance(tensors, Tensors):
        return tensors.sources
    return {name: Source.here(tensor) for name, tensor in tensors.items()}


def _copy(tensor: Tensor, whole: Tensor) -> None:
    import torch

    with torch.no_grad():
        tensor.copy_(whole)
