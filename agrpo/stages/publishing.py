"""Publishing: the learner's weights as numbered versions that engines load, and how long each is kept.

A version stays as long as a request may name it or a group sampled by it may still be trained: the newest of the history
and `max(max_staleness, 1)` before it. One more is there while the next is written.
"""

from __future__ import annotations

import logging
import re
import time

from agrpo.config import RunConfig
from agrpo.errors import StoreError
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.queue.lineage import members
from agrpo.queue.naming import ours
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.progress import WeightsForm, WeightsReady
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.stages.whole_folder import written_whole
from agrpo.weights.published import Publication, check_published, to_publish

logger = logging.getLogger(__name__)

FOLDER = "weights"
_NAME = re.compile("[0-9]{8}-[0-9a-f]{16}")


class Publisher:
    """The versions of one attempt, which follow those of its history."""

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
        self._kept: list[WeightsReady] | None = None
        """Versions of the history whose weights are there, ascending; None before they are looked up."""

    def publish(self, version: int, step: int, ordinal: int | None) -> WeightsReady:
        """Publish the weights as `version`: the folder first, then the record that names it, which is returned."""
        content = self._content()
        key = f"{FOLDER}/{version:08d}-{content.digest[:16]}"
        self._delete_old_weights(version)
        self._write_weights(key, content)
        ready = WeightsReady(
            version=version,
            attempt=self._attempt,
            step=step,
            ordinal=ordinal,
            digest=content.digest,
            folder=key,
            form=content.form,
            step_digest=self._step_digest(),
            probe=self._trainee.probe(self._config.run.seed),
            published_at=time.time(),
        )
        self._folder.write_version(ready)
        self._kept = [*self._history(), ready]
        self._delete_old_weights(version + 1)
        self._events.write("published", attempt=self._attempt, version=version, step=step, digest=content.digest)
        return ready

    def is_published(self, version: int) -> bool:
        """Whether a version record exists on the chain."""
        chain = members(self._folder.bases())
        return any(self._folder.version(member.attempt, version) is not None for member in chain)

    def damaged_version(self, last_step: int | None) -> WeightsReady | None:
        """The newest version of steps up to `last_step`, if its weights are gone or not those of its record."""
        newest = newest_version(self._folder, last_step)
        if newest is None:
            return None
        weights = self._folder.filesystem.local_folder(newest.folder)
        try:
            if weights is not None:
                check_published(weights, newest)
                return None
        except StoreError as error:
            logger.warning("the weights of version %d are damaged: %s", newest.version, error)
        return newest

    def mend(self, damaged: WeightsReady) -> None:
        """Write a version's weights again: the trainee has reached its step. Raises `StoreError` where they differ."""
        content = self._content()
        if content.digest != damaged.digest:
            raise StoreError(
                f"the weights of version {damaged.version} are damaged, and step {damaged.step} gives {content.digest} here, "
                f"expected {damaged.digest}: an adapter is merged with other bits on another machine. Resume on the one that "
                f"published it, or bring {damaged.folder} back from a copy"
            )
        logger.warning("writing the weights of version %d again", damaged.version)
        self._folder.filesystem.delete(damaged.folder)
        self._write_weights(damaged.folder, content)
        self._events.write("weights_mended", attempt=self._attempt, version=damaged.version, step=damaged.step)

    def _content(self) -> Publication:
        """What is written of the trainee's weights."""
        adapter = self._config.adapter
        as_adapter = adapter.rank is not None and adapter.publish == "adapter"
        form = WeightsForm.ADAPTER if as_adapter else WeightsForm.FULL
        return to_publish(self._trainee.model, form, with_head=self._config.engine.needs_head)

    def _step_digest(self) -> str | None:
        """Of what the steps train, where that is not what is written."""
        if self._config.adapter.rank is None and self._config.model.compute_dtype is None:
            return None
        return digest_of(tensor_digests(self._trainee.model))

    def _write_weights(self, key: str, content: Publication) -> None:
        with self._clock.part("sync_transfer"), written_whole(self._folder.filesystem, key) as scratch:
            content.write(scratch)

    def _delete_old_weights(self, below: int) -> None:
        """Keep what a request or a waiting group can name; what the history left behind, none can.

        Numbers from `below` on are left alone: a learner that has taken over may have published them. One that has goes back,
        maybe, to what looks old from here: then nothing is removed.
        """
        if max(self._folder.attempts(), default=self._attempt) > self._attempt:
            return
        self._kept = self._history()[-1 - max(self._config.asynchronous.max_staleness, 1) :]
        kept = {ready.folder for ready in self._kept}
        for name in self._published():
            if _number(name) < below and f"{FOLDER}/{name}" not in kept:
                self._folder.filesystem.delete(f"{FOLDER}/{name}")

    def _history(self) -> list[WeightsReady]:
        if self._kept is None:
            self._kept = self._found_in_history()
        return self._kept

    def _found_in_history(self) -> list[WeightsReady]:
        """Versions of the history whose weights are there, whichever attempt wrote them."""
        chain, found = members(self._folder.bases()), list[WeightsReady]()
        for name in self._published():
            for member in chain:
                ready = self._folder.version(member.attempt, _number(name))
                if ready is not None and ready.folder == f"{FOLDER}/{name}":
                    if member.through is None or ready.step <= member.through:
                        found.append(ready)
                    break
        return sorted(found, key=lambda ready: ready.version)

    def _published(self) -> list[str]:
        """Folders of weights, of whatever history."""
        return ours(self._folder.filesystem.list(FOLDER), _NAME, f"{self._folder.url}/{FOLDER}")


def _number(name: str) -> int:
    """The version that a folder of weights is of."""
    return int(name.partition("-")[0])
