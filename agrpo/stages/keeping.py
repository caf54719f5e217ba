"""Keeping: what the learner leaves behind of its weights — published versions, checkpoints, exports."""

from __future__ import annotations

import threading

from agrpo.config import RunConfig
from agrpo.policy.digest import digest_of, tensor_digests
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import CheckpointState, WeightsReady
from agrpo.stages.checkpointing import Checkpoints
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.stages.exporting import Exports
from agrpo.stages.publishing import Publisher
from agrpo.stages.pushing import Pusher


class Keeper:
    """Writes the trainee's weights in their forms, each whole or not at all, and takes the time of it."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        trainee: Trainee,
        *,
        attempt: int,
        events: EventStream,
        clock: StepClock,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop`: ends waits for others."""
        self._config = config
        self._trainee = trainee
        self._clock = clock
        self._publisher = Publisher(folder, config, trainee, attempt=attempt, events=events, clock=clock)
        self._pusher = Pusher(
            folder, config, trainee, attempt=attempt, events=events, clock=clock, stop=stop or threading.Event()
        )
        self._checkpoints = Checkpoints(folder, trainee, attempt=attempt, events=events)
        self.keepsakes = self._checkpoints.keepsakes
        """What parts of the run keep in every checkpoint and export."""
        self._exports = Exports(folder, config, trainee, attempt=attempt, events=events, keepsakes=self.keepsakes)

    def digest(self) -> str:
        return digest_of(tensor_digests(self._trainee.model))

    def publish(self, version: int, step: int, *, ordinal: int | None = None) -> None:
        """Publish the weights as `version`: the folder first, then the record that names it; then push them."""
        with self._clock.part("sync"):
            self._pusher.begin(version)
            self._pusher.push(self._publisher.publish(version, step, ordinal))
        self._clock.count_sync()

    def is_published(self, version: int) -> bool:
        """Whether a version record exists on the chain."""
        return self._publisher.is_published(version)

    def damaged_version(self, last_step: int | None = None) -> WeightsReady | None:
        """The newest version of steps up to `last_step`, if its weights are gone or not those of its record."""
        return self._publisher.damaged_version(last_step)

    def mend(self, damaged: WeightsReady) -> None:
        """Write a version's weights again: the trainee has reached its step."""
        self._publisher.mend(damaged)

    def checkpoint_is_due(self) -> bool:
        return self._checkpoints.seconds_since() >= self._config.checkpoint.every_seconds

    def checkpoint_fits(self, seconds: float) -> bool:
        """Whether a checkpoint can surely be written within so many seconds; not before one was."""
        return self._checkpoints.fits(seconds)

    def write_checkpoint(self, state: CheckpointState) -> None:
        """Write where the run stands, and remove the checkpoints that are not needed any more."""
        with self._clock.part("checkpoint"):
            self._checkpoints.write(state)

    def load_checkpoint(self, last_step: int) -> CheckpointState | None:
        """Load the newest checkpoint of the chain up to `last_step` whose hashes verify; None where there is none."""
        return self._checkpoints.load(last_step)

    def export_if_due(self, step: int) -> None:
        """The model after `step` for users, where `[checkpoint] save_steps` asks for it."""
        with self._clock.part("checkpoint"):
            self._exports.export_if_due(step)

    def export(self) -> None:
        """The model at the end of the run for users."""
        self._exports.export_last()
