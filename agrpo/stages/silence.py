"""How long other workers of a run have been silent, by this process's own clock: theirs may be wrong, or jump."""

from __future__ import annotations

import time

from agrpo.queue.run_folder import RunFolder
from agrpo.stages.names import kind_of


class Silence:
    """Hears the beats of all workers of a stage. A name that was never heard is silent since this object was made."""

    def __init__(self, folder: RunFolder, stage: str) -> None:
        self._folder = folder
        self._stage = stage
        self._began = time.monotonic()
        self._beats: dict[str, float] = {}
        """The time that the newest beat of each name gives for itself."""
        self._heard: dict[str, float] = {}

    def look(self) -> None:
        """Read the beats. Whoever has a new one has been heard."""
        now = time.monotonic()
        for beat in self._folder.beats(lambda name: kind_of(name) == self._stage):
            name, told_at = beat["stage"], beat["at"]
            if self._beats.get(name) != told_at:
                self._beats[name], self._heard[name] = told_at, now

    def seconds(self, name: str) -> float:
        """How long ago `name` was heard of last."""
        return time.monotonic() - self._heard.get(name, self._began)
