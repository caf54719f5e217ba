"""Commands: one page each, with a function of the page's name and the panel of `agrpo --help` that lists it.

A page imports what it needs inside its function, so that `agrpo --help` stays quick.
"""

from __future__ import annotations

from enum import StrEnum


class Panel(StrEnum):
    """Where `agrpo --help` lists a command."""

    TRAIN = "Train"
    LOOK = "Look at a run"
    ASK = "Ask a run's database"


__all__ = ["Panel"]
