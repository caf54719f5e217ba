"""Floors of recovery: below which ticket a restart needs nothing that the queue holds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agrpo.errors import RecordError
from agrpo.queue.checkpoints import CheckpointName, lineage_checkpoints, manifest_of

if TYPE_CHECKING:
    from agrpo.queue.run_folder import RunFolder

logger = logging.getLogger(__name__)

NEWEST = 2
"""Checkpoints that a restart may begin from: the newest may turn out to be damaged."""


def archive_floor(folder: RunFolder) -> int:
    """Tickets below it are consumed in both of the newest checkpoints of the lineage; 0 while there are fewer."""
    floors = recovery_floors(folder)
    return min(floors) if len(floors) == NEWEST else 0


def recovery_floors(folder: RunFolder) -> list[int]:
    """Floors of the newest checkpoints of the lineage, newest first.

    One that is damaged, or deleted meanwhile, is passed over: then older ones count, and less is archived.
    """
    floors: list[int] = []
    for name in lineage_checkpoints(folder):
        floor = _floor_of(folder, name)
        if floor is not None:
            floors.append(floor)
        if len(floors) == NEWEST:
            break
    return floors


def _floor_of(folder: RunFolder, name: CheckpointName) -> int | None:
    try:
        manifest = manifest_of(folder, name)
    except RecordError as error:
        logger.warning("nothing is archived on the word of %s: %s", name.key, error)
        return None
    return None if manifest is None or manifest.state is None else manifest.state.floor
