"""Published versions: the newest one of the run's history."""

from __future__ import annotations

from agrpo.queue.lineage import members
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import WeightsReady


def newest_version(folder: RunFolder) -> WeightsReady | None:
    """The version of the latest step of the chain; None before the first is published."""
    found: list[WeightsReady] = []
    for member in members(folder.bases()):
        for number in reversed(folder.versions(member.attempt)):
            ready = folder.version(member.attempt, number)
            if ready is not None and (member.last is None or ready.step <= member.last):
                found.append(ready)
                break
    return max(found, key=lambda ready: ready.version, default=None)


def newest_after(folder: RunFolder, known: WeightsReady) -> WeightsReady:
    """The newest version that the attempt of `known` has published since, found without listing; `known` if none."""
    newest = known
    while (ready := folder.version(known.attempt, newest.version + 1)) is not None:
        newest = ready
    return newest
