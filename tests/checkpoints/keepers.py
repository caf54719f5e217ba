"""A keeper over a folder of one's own, with the tiny model in training: for tests of what a learner leaves behind."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from agrpo.config import ModelSection, OptimizerSection, RunConfig, resolve
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.checksum import sealed_document
from agrpo.records.progress import Attempt, Base, CheckpointState, Event
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.stages.keeping import Keeper
from tests.stages.walk import settings

DOCUMENT = {"name": "sums", "created_at": "2026-11-29T08:00:00+00:00", "config_digest": "0" * 32}


@dataclass(kw_only=True)
class Kept:
    """One attempt's keeper and what it works on."""

    folder: RunFolder
    trainee: Trainee
    keeper: Keeper
    attempt: int

    def move(self) -> None:
        """Other weights and moments than before."""
        with torch.no_grad():
            for weight in self.trainee.model.parameters():
                weight.grad = torch.full_like(weight, 0.01)
        self.trainee.optimizer.step()

    def checkpoint(self, step: int) -> None:
        self.move()
        self.keeper.write_checkpoint(state_at(step, self.attempt, self.keeper.digest()))

    def checkpoints(self) -> list[str]:
        return self.folder.filesystem.list("checkpoints")

    def weights(self) -> list[int]:
        return [int(name.partition("-")[0]) for name in self.folder.filesystem.list("weights")]


def new_run(place: Path | Filesystem, **document: Any) -> RunFolder:
    """An empty run with its first base, in a folder or in a store."""
    folder = RunFolder(LocalFilesystem(place) if isinstance(place, Path) else place)
    folder.filesystem.put("run.json", sealed_document(json.dumps(DOCUMENT | document).encode()))
    join(folder, Base(attempt=0))
    return folder


def join(folder: RunFolder, base: Base) -> None:
    """An attempt takes the history over."""
    folder.write_attempt(Attempt(attempt=base.attempt, host="h", pid=1, started_at=0.0))
    folder.write_base(base)


def keep(folder: RunFolder, model: Path, attempt: int = 0, **tables: Any) -> Kept:
    """What an attempt keeps of the tiny model."""
    tree = settings(model, model / "config.json", model, **tables)
    if tree["engine"]["name"] != "transformers":
        del tree["engine"]["threads"]
    config = RunConfig.build(resolve(values=tree))
    adapted = config.adapter.rank is not None
    policy = load_policy(config.model, adapter=config.adapter) if adapted else copy.deepcopy(_loaded(model))
    trainee = Trainee(model=policy, optimizer=build_optimizer(policy, OptimizerSection(learning_rate=1e-2)))
    events = EventStream(folder, f"learner-{attempt}")
    keeper = Keeper(folder, config, trainee, attempt=attempt, events=events, clock=StepClock())
    return Kept(folder=folder, trainee=trainee, keeper=keeper, attempt=attempt)


@functools.cache
def _loaded(model: Path) -> PreTrainedModel:
    return load_policy(ModelSection(path=str(model)))


def events_of(folder: RunFolder, attempt: int, kind: str) -> list[Event]:
    stream = f"learner-{attempt}"
    found = [folder.event(stream, number) for number in folder.event_numbers(stream)]
    return [event for event in found if event is not None and event.kind == kind]


def state_at(step: int, attempt: int, digest: str) -> CheckpointState:
    return replace(_STATE, step=step, attempt=attempt, digest=digest, version=step)


_STATE = CheckpointState(
    attempt=0,
    step=0,
    digest="",
    floor=4,
    consumed=[5, 7],
    num_replaced=1,
    num_tokens=100,
    num_prompts=6,
    version=0,
    written_at=1.5,
)
