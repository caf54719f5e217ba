"""The warm start's progress bar, alone on the terminal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agrpo.quickstart.warm_start import OnStep


@contextmanager
def progress_bar(what: str, steps: int) -> Generator[OnStep]:
    """A bar on the terminal while the block runs, fed by the `on_step` it gives. Without a terminal it stays silent."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(what, total=steps, loss=float("nan"))
        yield lambda step, loss: progress.update(bar, completed=step, loss=loss)


@contextmanager
def transformers_bars_hidden() -> Generator[None]:
    """Without transformers' own bars for loading and saving, which take less time here than they take to read."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
