"""The settings a run goes on under: those it began with, and what resumes have amended since (`settings/{n}.json`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agrpo.config.amendments import amended
from agrpo.records.amendment import Amendment
from agrpo.records.documents import dump, load

if TYPE_CHECKING:
    from agrpo.queue.filesystems import Filesystem
    from agrpo.queue.run_folder import RunFolder

PREFIX = "settings"


def amended_document(filesystem: Filesystem, document: dict[str, Any]) -> dict[str, Any]:
    """`run.json` with the settings that hold now. All else in it, its digest of the settings included, is as it began."""
    found = amendments(filesystem)
    if not found:
        return document
    settings = document["settings"]
    for amendment in found:
        settings = {
            "tree": amended(settings["tree"], amendment.values),
            "origins": {**settings["origins"], **amendment.origins},
        }
    return {**document, "settings": settings}


def amendments(filesystem: Filesystem) -> list[Amendment]:
    """What resumes have changed, in order."""
    names = [name for name in filesystem.list(PREFIX) if name.endswith(".json")]
    found = {name: filesystem.get(f"{PREFIX}/{name}") for name in names}
    read = [
        load(Amendment, memoryview(data), f"{filesystem.url}/{PREFIX}/{name}")
        for name, data in found.items()
        if data is not None
    ]
    return sorted(read, key=lambda amendment: amendment.number)


def amend(folder: RunFolder, values: Mapping[str, Any], origins: Mapping[str, str]) -> Amendment:
    """Write an amendment after the last. A run that ended under its former settings is open again."""
    hint = folder.hint()
    if hint is not None and hint.finished:
        folder.write_hint(replace(hint, finished=False, written_at=time.time()))
    number = max((amendment.number for amendment in amendments(folder.filesystem)), default=-1) + 1
    amendment = Amendment(number=number, values=dict(values), origins=dict(origins), written_at=time.time())
    while not folder.filesystem.put(f"{PREFIX}/{amendment.number:06d}.json", dump(amendment)):
        amendment = replace(amendment, number=amendment.number + 1)
    return amendment
