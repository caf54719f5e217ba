"""Turns at the engine's servers: a learner that pushes weights and a generator that loads some never do so at once.

    turns/learner.json  turns/generator.json     overwritten

Each writes its own word before it reads the other's, so that of two who begin at once at least one sees the other. The
learner then waits; the generator takes its word back, and waits.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from agrpo.errors import RecordError, RecordTooNew
from agrpo.queue.run_folder import RunFolder
from agrpo.records.documents import dump, load
from agrpo.records.turns import GeneratorTurn, LearnerTurn

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Turns:
    """The two words of one run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def learner(self) -> LearnerTurn | None:
        """The newest attempt's word: one that has died pushes nothing. None: it has said none."""
        turn = self._read(LearnerTurn, "learner")
        return turn if turn is not None and turn.attempt >= max(self._folder.attempts(), default=0) else None

    def generator(self) -> GeneratorTurn | None:
        return self._read(GeneratorTurn, "generator")

    def write(self, turn: LearnerTurn | GeneratorTurn) -> None:
        self._folder.filesystem.put(_key(type(turn)), dump(turn), exclusive=False)

    def _read(self, cls: type[T], name: str) -> T | None:
        key = _key(cls)
        data = self._folder.filesystem.get(key)
        try:
            return None if data is None else load(cls, memoryview(data), f"{self._folder.url}/{key}")
        except RecordTooNew:
            raise
        except RecordError as error:
            logger.warning("%s. It is passed over: the %s writes it anew", error, name)
            return None


def _key(cls: type[Any]) -> str:
    return f"turns/{cls.__name__.removesuffix('Turn').lower()}.json"
