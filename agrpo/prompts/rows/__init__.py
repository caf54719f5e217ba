"""Rows as prompt sources read them: checked once at the start, then taken by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from agrpo.errors import PromptError
from agrpo.prompts import DatasetRow, lacks_prompt, messages_of

if TYPE_CHECKING:
    import pyarrow as pa


def checked(rows: Sequence[DatasetRow], where: str) -> Sequence[DatasetRow]:
    """`rows` if there are any and the first holds a conversation or no prompt. Raises `PromptError` that begins with `where`.

    Whether a row may do without a prompt is known where the run's environments are.
    """
    if len(rows) == 0:
        raise PromptError(f"{where} has no rows; a run needs at least one prompt")
    try:
        if not lacks_prompt(rows[0]):
            messages_of(rows[0], 0)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None
    return rows


class TableRows(Sequence[DatasetRow]):
    """An Arrow table, one row at a time."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    @overload
    def __getitem__(self, index: int) -> DatasetRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DatasetRow]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._table.slice(place, 1).to_pylist()[0]


__all__ = ["TableRows", "checked"]
