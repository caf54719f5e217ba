"""Published versions: the newest one of the run's history."""

from __future__ import annotations

from agrpo.queue.lineage import lineage
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import WeightsReady


def newest_version(folder: RunFolder) -> WeightsReady | None:
    """The version of the latest step on the lineage; None before the first is published."""
    for segment in reversed(lineage(folder.bases())):
        for number in reversed(folder.versions(segment.attempt)):
            ready = folder.version(segment.attempt, number)
            if ready is not None and (segment.last is None or ready.step <= segment.last):
                return ready
    return None
