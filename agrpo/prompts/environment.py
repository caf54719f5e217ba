"""Prompts of environments that bring their own: there is no dataset, and `reset` says what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, overload

from pydantic import Field

from agrpo.prompts import DatasetRow
from agrpo.registry import part


@part
class Environment:
    """Rows that hold nothing but their number, and the environment where there are several.

    `reset` may take the number: all rollouts of a group have the same one, so that a state drawn from it is the same for
    all of them.
    """

    size: Annotated[int, Field(ge=1)] = 10_000
    """Rows of an epoch; their numbers go from 0 up to this."""
    names: list[str] = field(default_factory=list)
    """Environments of `environments.factories` that rows pick, one after the other. Empty: the run has a single one."""

    def __call__(self) -> Sequence[DatasetRow]:
        return _Numbers(self.size, self.names)


class _Numbers(Sequence[DatasetRow]):
    def __init__(self, size: int, names: list[str]) -> None:
        self._size = size
        self._names = names

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> DatasetRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DatasetRow]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._size))]
        number = index + self._size if index < 0 else index
        if not 0 <= number < self._size:
            raise IndexError(f"row {index} of {self._size}")
        named = {"environment": self._names[number % len(self._names)]} if self._names else {}
        return {"number": number, **named}
