"""Keeping: what the learner leaves behind of its weights — published versions, checkpoints, the exported model."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from agrpo.checkpoints.single import read_checkpoint, write_checkpoint
from agrpo.config import RunConfig
from agrpo.errors import CheckpointError, StoreError, StoreFull
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.policy.probe import make_probe
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.lineage import Member, members
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.progress import CheckpointState, WeightsReady, dump, load
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.weights.filesystem import check_weights, write_weights

logger = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
"""A damaged newest one may need the older."""


class Keeper:
    """Writes the trainee's weights in their three forms, each whole or not at all."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        trainee: Trainee,
        *,
        attempt: int,
        events: EventStream,
        clock: StepClock,
    ) -> None:
        self._folder = folder
        self._config = config
        self._trainee = trainee
        self._attempt = attempt
        self._events = events
        self._clock = clock
        self._checkpointed_at = time.monotonic()

    def digest(self) -> str:
        return digest_of(tensor_digests(self._trainee.model))

    # ---- versions

    def publish(self, version: int, step: int) -> None:
        """Publish the weights as `version`: the folder first, then the record that names it."""
        with self._clock.part("sync"):
            self._publish(version, step)
        self._clock.count_sync()

    def _publish(self, version: int, step: int) -> None:
        digest = self.digest()
        key = f"weights/{version:08d}-{digest[:16]}"
        self._delete_old_weights(version)
        self._write_weights(key)
        ready = WeightsReady(
            version=version,
            attempt=self._attempt,
            step=step,
            digest=digest,
            folder=key,
            probe=make_probe(self._trainee.model, self._config.run.seed),
            published_at=time.time(),
        )
        self._folder.write_version(ready)
        self._events.write("published", attempt=self._attempt, version=version, step=step, digest=digest)

    def is_published(self, version: int) -> bool:
        """Whether a version record exists on the chain."""
        chain = members(self._folder.bases())
        return any(self._folder.version(member.attempt, version) is not None for member in chain)

    def damaged_version(self) -> WeightsReady | None:
        """The newest version, if its weights are gone or not those of its record."""
        newest = newest_version(self._folder)
        if newest is None:
            return None
        weights = self._folder.filesystem.local_folder(newest.folder)
        try:
            if weights is not None:
                check_weights(weights, newest.digest)
                return None
        except StoreError as error:
            logger.warning("the weights of version %d are damaged: %s", newest.version, error)
        return newest

    def mend(self, damaged: WeightsReady) -> None:
        """Write a version's weights again: the trainee has reached its step."""
        logger.warning("writing the weights of version %d again", damaged.version)
        self._folder.filesystem.delete(damaged.folder)
        self._write_weights(damaged.folder)

    def _write_weights(self, key: str) -> None:
        with self._clock.part("sync_transfer"), _written_whole(self._folder.filesystem, key) as scratch:
            write_weights(scratch, self._trainee.model)

    def _delete_old_weights(self, newest: int) -> None:
        """Make room for the newest: keep what a group that may still be trained could name, and the newest two."""
        kept = max(self._config.asynchronous.max_staleness, 0) + 2
        for name in self._folder.filesystem.list("weights"):
            if int(name.partition("-")[0]) <= newest - kept:
                self._folder.filesystem.delete(f"weights/{name}")

    # ---- checkpoints

    def checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._checkpointed_at >= self._config.checkpoint.every_seconds

    def write_checkpoint(self, state: CheckpointState) -> None:
        with self._clock.part("checkpoint"):
            self._write_checkpoint(state)

    def _write_checkpoint(self, state: CheckpointState) -> None:
        key = f"checkpoints/{state.step:08d}-{state.attempt:06d}"
        extra = dump(state).decode()
        with _written_whole(self._folder.filesystem, key) as scratch:
            write_checkpoint(scratch, self._trainee.model, self._trainee.optimizer, {"state": extra})
        self._checkpointed_at = time.monotonic()
        self._events.write("checkpoint", attempt=self._attempt, step=state.step, folder=key, digest=state.digest)
        for name in self._folder.filesystem.list("checkpoints")[:-CHECKPOINTS_KEPT]:
            self._folder.filesystem.delete(f"checkpoints/{name}")

    def load_checkpoint(self, last_step: int) -> CheckpointState | None:
        """Load the newest checkpoint of the chain up to `last_step` whose hashes verify.

        None: the lineage has none, so the run begins again at its first weights, which are a function of the settings.
        """
        chain = members(self._folder.bases())
        for name in reversed(self._folder.filesystem.list("checkpoints")):
            step, attempt = (int(number) for number in name.split("-"))
            if step > last_step or not _is_on(chain, attempt, step):
                continue
            source = self._folder.filesystem.local_folder(f"checkpoints/{name}")
            if source is None:
                continue
            try:
                extra = read_checkpoint(source, self._trainee.model, self._trainee.optimizer)
            except CheckpointError as error:
                logger.warning("checkpoint %s is passed over: %s", name, error)
                continue
            return load(CheckpointState, extra["state"].encode())
        logger.warning("no checkpoint of this history can be loaded; replaying from the first step")
        return None

    # ---- export

    def export(self) -> None:
        """The model as `from_pretrained` reads it, with its tokenizer."""
        from transformers import AutoTokenizer

        source = self._config.model
        with _written_whole(self._folder.filesystem, "model") as scratch:
            self._trainee.model.save_pretrained(scratch)
            AutoTokenizer.from_pretrained(
                source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
            ).save_pretrained(scratch)
            self._folder.filesystem.delete("model")


@contextmanager
def _written_whole(filesystem: Filesystem, key: str) -> Generator[Path]:
    """A folder to fill, published under `key` at the end of the block. After an error nothing of it is left.

    Raises `StoreFull` where its disk is.
    """
    scratch = filesystem.scratch()
    try:
        yield scratch
        filesystem.put_folder(key, scratch)
    except (OSError, SafetensorError) as error:
        # safetensors has the system's words, and no number.
        if isinstance(error, StoreError) or os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise StoreFull(
            f"cannot write {filesystem.url}/{key}: no space left on its disk. What was written before is whole: make room "
            "there, then `agrpo resume` this run"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_on(chain: list[Member], attempt: int, step: int) -> bool:
    return any(member.attempt == attempt and (member.last is None or step <= member.last) for member in chain)
