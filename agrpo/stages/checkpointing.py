"""Checkpointing: where a learner that died goes on from. The two newest of the history are kept, whatever else is there."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from agrpo.checkpoints.manifest import verified
from agrpo.checkpoints.single import Keepsakes, read_checkpoint, write_checkpoint
from agrpo.errors import CheckpointError, CheckpointMismatch, RecordError, RecordTooNew, StoreLostWrites
from agrpo.queue.checkpoints import (
    CheckpointName,
    all_checkpoints,
    identity_of,
    lineage_checkpoints,
    manifest_of,
)
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import CheckpointState
from agrpo.stages.execution import Trainee
from agrpo.stages.whole_folder import written_whole

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
"""A damaged newest one may need the older."""
MARGIN = 2.0
"""A disk that all who were asked to stop write to at once is slower than it was."""


class Checkpoints:
    """The recovery checkpoints of one attempt, and of the history before it."""

    def __init__(self, folder: RunFolder, trainee: Trainee, *, attempt: int, events: EventStream) -> None:
        self.keepsakes = Keepsakes()
        """What parts of the run keep in every checkpoint; filled by `load`."""
        self._folder = folder
        self._trainee = trainee
        self._attempt = attempt
        self._events = events
        self._run = identity_of(folder)
        self._written_at = time.monotonic()
        self._longest_seconds: float | None = None
        """That one took to write; None before the first."""
        self._read_seconds: float | None = None
        """That the last one took to read and verify, twice: writing is slower than reading."""
        self._whole: dict[CheckpointName, bool] = {}
        """Those that were looked at, or written here."""

    def seconds_since(self) -> float:
        """Since the last one of the history was written."""
        return time.monotonic() - self._written_at

    def fits(self, seconds: float) -> bool:
        """Whether one can surely be written within so many seconds.

        Before this attempt has written one, twice as long as reading the last one took is allowed for.
        """
        known = self._longest_seconds if self._longest_seconds is not None else self._read_seconds
        return known is not None and MARGIN * known <= seconds

    def write(self, state: CheckpointState) -> None:
        """Write where the run stands, unless this attempt has done so, and remove what is not needed any more."""
        name, began = CheckpointName(state.step, state.attempt), time.monotonic()
        if not self._whole.get(name):
            with written_whole(self._folder.filesystem, name.key) as scratch:
                trainee = self._trainee
                write_checkpoint(
                    scratch,
                    trainee.model,
                    trainee.optimizer,
                    run=self._run,
                    state=state,
                    keepsakes=self.keepsakes,
                    reference=trainee.reference_state,
                )
            self._longest_seconds = max(self._longest_seconds or 0.0, time.monotonic() - began)
            self._whole[name] = True
            self._events.write(
                "checkpoint", attempt=self._attempt, step=state.step, folder=name.key, digest=state.digest
            )
        self._written_at = time.monotonic()
        self._remove_old()

    def load(self, last_step: int) -> CheckpointState | None:
        """Load the newest checkpoint of the chain up to `last_step` whose hashes verify.

        None: the history has none, so the run begins again at its first weights, which are a function of the settings.
        Raises `CheckpointMismatch` for one of another run, another model or a later agrpo: someone put it there.
        """
        for name in lineage_checkpoints(self._folder, last_step):
            began = time.monotonic()
            try:
                state = self._load(name)
            except CheckpointMismatch:
                raise
            except (CheckpointError, StoreLostWrites) as error:
                self._pass_over(name, error)
                continue
            self._whole[name] = True
            self._read_seconds = 2 * (time.monotonic() - began)
            # Its age counts: learners that live shorter than the interval would else replay ever more. Clocks may jump.
            self._written_at -= max(0.0, time.time() - state.written_at)
            return state
        logger.warning("no checkpoint of this history can be loaded; replaying from the first step")
        return None

    def _load(self, name: CheckpointName) -> CheckpointState:
        self._look_at_manifest(name)
        trainee, source = self._trainee, self._source(name)
        return read_checkpoint(
            source,
            trainee.model,
            trainee.optimizer,
            run=self._run,
            keepsakes=self.keepsakes,
            reference=trainee.reference_state,
        )

    def _look_at_manifest(self, name: CheckpointName) -> None:
        """Before anything is downloaded. Raises `CheckpointError` or `CheckpointMismatch`."""
        try:
            manifest = manifest_of(self._folder, name)
        except RecordTooNew as error:
            raise CheckpointMismatch(str(error)) from None
        except RecordError as error:
            raise CheckpointError(str(error)) from None
        if manifest is None:
            raise CheckpointError(f"{self._folder.url}/{name.key} has no manifest: its writing was not finished")

    def _source(self, name: CheckpointName) -> Path:
        source = self._folder.filesystem.local_folder(name.key)
        if source is None:
            raise CheckpointError(f"{self._folder.url}/{name.key} is gone")
        return source

    def _pass_over(self, name: CheckpointName, cause: Exception) -> None:
        self._whole[name] = False
        logger.warning("%s is passed over: %s", name.key, cause)
        self._events.write(
            "checkpoint_skipped", attempt=self._attempt, step=name.step, folder=name.key, reason=str(cause)
        )

    def _remove_old(self) -> None:
        """Keep the two newest whole ones of the history; before there are two, everything.

        What a newer learner has written is left alone: it decides what is kept.
        """
        if max(self._folder.attempts()) > self._attempt:
            return
        kept: list[CheckpointName] = []
        for name in lineage_checkpoints(self._folder):
            if self._is_whole(name):
                kept.append(name)
            if len(kept) == CHECKPOINTS_KEPT:
                break
        if len(kept) == CHECKPOINTS_KEPT:
            for name in all_checkpoints(self._folder):
                if name not in kept and name.attempt <= self._attempt:
                    self._folder.filesystem.delete(name.key)

    def _is_whole(self, name: CheckpointName) -> bool:
        if name not in self._whole:
            self._whole[name] = self._verifies(name)
        return self._whole[name]

    def _verifies(self, name: CheckpointName) -> bool:
        try:
            self._look_at_manifest(name)
            verified(self._source(name))
        except (CheckpointError, StoreLostWrites) as error:
            logger.warning("%s is not counted: %s", name.key, error)
            return False
        return True
