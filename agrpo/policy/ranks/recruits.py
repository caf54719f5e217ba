"""Who brings the further ranks of a trainee, what is told where one is lost, and where weights lie between two groups."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from agrpo.errors import AgrpoError, StoreFull
from agrpo.policy.ranks.group import Group


class Recruits(Protocol):
    """Who brings the further ranks of a trainee, and knows what became of them."""

    def can_be(self, size: int) -> bool:
        """Whether so many ranks find a device each."""
        ...

    def form(self, size: int) -> Group:
        """A group of so many, whose rank 0 is this process; the group before is no more."""
        ...

    def check(self) -> None:
        """Raise `LearnerRankLost` where a rank is gone or silent."""
        ...

    def lost(self) -> AgrpoError | None:
        """The error of the rank that is why something failed just now; None: none is."""
        ...


@contextmanager
def named(group: Group, recruits: Recruits | None = None) -> Generator[None]:
    """Where a rank is lost or late, every other one fails at what it did with it: the cause is told instead.

    `recruits`: None where nobody knows what became of the others.
    """
    try:
        yield
    except AgrpoError:
        raise
    except RuntimeError as error:
        cause = (None if recruits is None else recruits.lost()) or group.absence(error)
        if cause is None:
            raise
        raise cause from error


@contextmanager
def set_aside(scratch: Callable[[], Path] | None) -> Generator[Path]:
    """A folder for what is between two groups of processes, and gone after it. Raises `StoreFull` where its disk is.

    `scratch`: makes it; None: among the system's temporary ones.
    """
    folder = scratch() if scratch else Path(tempfile.mkdtemp(prefix="agrpo-ranks-"))
    try:
        yield folder
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise StoreFull(
            f"cannot write {folder}: no space left on its disk for the weights and the optimizer's state, which go to other "
            "processes through it. What was written before is whole: make room there, then `agrpo resume` this run"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
