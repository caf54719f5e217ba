"""A run whose queue holds groups, scores and claims, and whose checkpoints say how far they are needed."""

from __future__ import annotations

from uuid import uuid4

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_to_arrow
from agrpo.records.documents import dump
from agrpo.records.manifest import CheckpointManifest, RunIdentity
from agrpo.records.progress import Base, CheckpointState
from tests.stages.groups import a_group, publish

QUEUES = ("groups", "scored", "claims")


def a_run(url: str | None = None, tickets: int = 0) -> RunFolder:
    """A run of one attempt, with so many tickets claimed, generated and scored."""
    folder = RunFolder.create(url or f"memory://{uuid4().hex}", {"name": "test"})
    folder.write_base(Base(attempt=0))
    for ticket in range(tickets):
        fill(folder, ticket)
    return folder


def fill(folder: RunFolder, ticket: int) -> None:
    folder.claims.take(ticket, owner=f"generator-{ticket % 2}", base=0)
    publish(folder, a_group(ticket, lengths=(2, 0)), (1.0, float("nan")))


def a_slot(ticket: int, **knobs: object) -> bytes:
    return bytes(group_to_arrow(a_group(ticket, **knobs)))


def checkpoint(folder: RunFolder, step: int, floor: int, attempt: int = 0) -> None:
    """A checkpoint that says nothing but its floor."""
    state = CheckpointState(
        attempt=attempt,
        step=step,
        digest="",
        floor=floor,
        consumed=[],
        num_replaced=0,
        num_tokens=0,
        num_prompts=0,
        version=step,
        written_at=0.0,
    )
    identity = RunIdentity(name="test", created_at="now", config_digest="")
    manifest = CheckpointManifest(run=identity, step=step, digest="", state=state, files={})
    folder.filesystem.put(f"checkpoints/{step:08d}-{attempt:06d}/MANIFEST.json", dump(manifest))


def each(found: list) -> dict[str, list]:
    """The same of every queue."""
    return {name: found for name in QUEUES}


def lying(folder: RunFolder) -> dict[str, list[int]]:
    """Tickets of what lies in the queue itself, by queue."""
    queues = {name: getattr(folder, name).shards for name in QUEUES}
    return {name: [int(found[:12]) for found in queue.lying()] for name, queue in queues.items()}


def archived(folder: RunFolder) -> dict[str, list[str]]:
    """Names of the archive's files, by queue."""
    found = {name: folder.filesystem.list(f"archive/{name}") for name in QUEUES}
    return {name: [file.removesuffix(".parquet") for file in files] for name, files in found.items()}
