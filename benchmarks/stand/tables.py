"""Tables for a terminal, and a progress line that leaves a log alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; the first flush left, the others right. A float has its digits already."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for number, row in enumerate(cells):
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    sys.stdout.flush()


class Bar:
    """How far a measurement is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, done: float, what: str = "") -> None:
        """Say that `done` of the total is behind, and what is being done."""
        self._progress.update(self._task, completed=done, what=what)

    def advance(self, what: str = "") -> None:
        """One more."""
        self._progress.update(self._task, advance=1, what=what)


@contextmanager
def bar(name: str, total: float) -> Iterator[Bar]:
    """A bar on the terminal's error stream while the block runs, gone after it."""
    columns = (TextColumn(name), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(name, total=total, what=""))
