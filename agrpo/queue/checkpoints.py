"""Checkpoints of the run's history: which there are, and what each knows, without its tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agrpo.queue.filesystems import MANIFEST
from agrpo.queue.lineage import Member, members
from agrpo.queue.naming import ours
from agrpo.queue.run_folder import RunFolder
from agrpo.records.documents import load
from agrpo.records.manifest import CheckpointManifest, RunIdentity

FOLDER = "checkpoints"
_NAME = re.compile("[0-9]{8}-[0-9]{6}")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """The step, and the attempt that wrote it. Ordered as the history is."""

    step: int
    attempt: int

    @property
    def key(self) -> str:
        return f"{FOLDER}/{self.step:08d}-{self.attempt:06d}"


def all_checkpoints(folder: RunFolder) -> list[CheckpointName]:
    """Every checkpoint there is, whole or not, of whatever history; newest first."""
    names = ours(folder.filesystem.list(FOLDER), _NAME, f"{folder.url}/{FOLDER}")
    found = (name.split("-") for name in names)
    return sorted((CheckpointName(int(step), int(attempt)) for step, attempt in found), reverse=True)


def lineage_checkpoints(folder: RunFolder, last_step: int | None = None) -> list[CheckpointName]:
    """Those of the run's history, of steps up to `last_step`; newest first. None before a base is written."""
    chain = members(folder.bases())
    return [
        name
        for name in all_checkpoints(folder)
        if (last_step is None or name.step <= last_step) and any(_holds(member, name) for member in chain)
    ]


def manifest_of(folder: RunFolder, name: CheckpointName) -> CheckpointManifest | None:
    """What a checkpoint says of itself; None where its writing was not finished. Raises `RecordError`.

    Its files may be damaged all the same: `checkpoints.single` checks them.
    """
    key = f"{name.key}/{MANIFEST}"
    data = folder.filesystem.get(key)
    return None if data is None else load(CheckpointManifest, memoryview(data), f"{folder.url}/{key}")


def identity_of(folder: RunFolder) -> RunIdentity:
    """What `run.json` says of the run."""
    document = folder.document()
    return RunIdentity(**{name: document[name] for name in ("name", "created_at", "config_digest")})


def _holds(member: Member, name: CheckpointName) -> bool:
    return member.attempt == name.attempt and (member.last is None or name.step <= member.last)
