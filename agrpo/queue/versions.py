"""Published versions: the newest one of the run's history."""

from __future__ import annotations

from collections.abc import Mapping

from agrpo.queue.lineage import members
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Base, WeightsReady


def newest_version(
    folder: RunFolder, last_step: int | None = None, *, bases: Mapping[int, Base] | None = None
) -> WeightsReady | None:
    """The newest version of the chain, and of steps up to `last_step`; None before the first is published.

    `bases`: those that make the chain; None: all that are written.
    """
    # Numbers grow along the chain: the first member, from the newest on, that has one which counts has the newest.
    for member in members(folder.bases() if bases is None else bases):
        bounds = [bound for bound in (member.through, last_step) if bound is not None]
        for number in reversed(folder.versions(member.attempt)):
            ready = folder.version(member.attempt, number)
            if ready is not None and all(ready.step <= bound for bound in bounds):
                return ready
    return None


def newest_after(folder: RunFolder, known: WeightsReady) -> WeightsReady:
    """The newest version that the attempt of `known` has published since, found without listing; `known` if none."""
    newest = known
    while (ready := folder.version(known.attempt, newest.version + 1)) is not None:
        newest = ready
    return newest


def version_of_label(folder: RunFolder, label: str) -> int | None:
    """The version that servers are to call `label`, `{version}@{name of its folder}`; None: no version of this run."""
    number, _, name = label.partition("@")
    if not number.isdecimal():
        return None
    for attempt in reversed(folder.attempts()):
        ready = folder.version(attempt, int(number))
        if ready is not None and ready.folder.rpartition("/")[2] == name:
            return ready.version
    return None
