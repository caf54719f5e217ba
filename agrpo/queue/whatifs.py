"""Where what-ifs lie in the run folder.

whatif/{name}.json            what is asked; written first
whatif/{name}/{ticket}.arrow  one group each, in shards as every topic
"""

from __future__ import annotations

from agrpo.queue.filesystems import Filesystem
from agrpo.queue.topic import Topic
from agrpo.records.documents import dump, load
from agrpo.records.whatif import WhatIf

_FOLDER = "whatif"
_ENDING = ".json"


class WhatIfs:
    """The what-ifs of a run. Thread-safe, as its filesystem is."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def names(self) -> list[str]:
        """Of all that were begun."""
        names = self._filesystem.list(_FOLDER)
        return sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))

    def read(self, name: str) -> WhatIf | None:
        """What is asked under the name; None where nothing is."""
        key = f"{_FOLDER}/{name}{_ENDING}"
        data = self._filesystem.get(key)
        return None if data is None else load(WhatIf, memoryview(data), f"{self._filesystem.url}/{key}")

    def begin(self, whatif: WhatIf) -> bool:
        """Write what is asked, durably. False: something is asked under the name already."""
        return self._filesystem.put(f"{_FOLDER}/{whatif.name}{_ENDING}", dump(whatif))

    def groups(self, name: str) -> Topic:
        """The groups of the what-if, by ticket."""
        return Topic(self._filesystem, f"{_FOLDER}/{name}")
