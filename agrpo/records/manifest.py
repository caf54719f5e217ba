"""The manifest of a checkpoint or an export: whose it is, what it knows beside tensors, and what its files hold."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.records.progress import CheckpointState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What a run is known by: `run.json` never changes."""

    name: str
    created_at: str
    config_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeal:
    """One file as it was written."""

    num_bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """Written last, so that a folder with one is whole."""

    run: RunIdentity
    step: int
    digest: str
    """Of all weights."""
    state: CheckpointState | None
    """None in an export, from which another run may begin, and none goes on."""
    files: dict[str, FileSeal]
    """Every other file of the folder, by name."""
    file_digest: str | None = None
    """Of an export's weights as its file holds them, where that names or rounds them in another way. None: it is `digest`."""
