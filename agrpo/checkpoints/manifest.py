"""Vouching for a folder: every file's hash in a manifest that is written last, and checked before anything is read."""

from __future__ import annotations

from pathlib import Path

import xxhash

from agrpo.errors import CheckpointError, CheckpointMismatch, RecordError, RecordTooNew
from agrpo.records.documents import dump, load
from agrpo.records.manifest import CheckpointManifest, FileSeal, RunIdentity
from agrpo.records.progress import CheckpointState

MANIFEST = "MANIFEST.json"


def write_manifest(
    folder: Path,
    *,
    run: RunIdentity,
    step: int,
    digest: str,
    state: CheckpointState | None = None,
    file_digest: str | None = None,
) -> CheckpointManifest:
    """Vouch for every file of the folder."""
    files = {name: _seal(folder / name) for name in _files(folder)}
    manifest = CheckpointManifest(run=run, step=step, digest=digest, state=state, files=files, file_digest=file_digest)
    (folder / MANIFEST).write_bytes(dump(manifest))
    return manifest


def verified(folder: Path) -> CheckpointManifest:
    """The folder's manifest, if every file is as it was written.

    Raises `CheckpointError` naming the first file that is absent or damaged, `CheckpointMismatch` for a later schema.
    """
    manifest = _manifest(folder / MANIFEST)
    for name, expected in manifest.files.items():
        found = _seal(folder / name) if (folder / name).is_file() else None
        if found != expected:
            what = "is absent" if found is None else f"has {found.num_bytes} bytes with xxh3_128 {found.xxh3_128}"
            raise CheckpointError(
                f"{folder / name} {what}, expected {expected.num_bytes} bytes with {expected.xxh3_128}; it is damaged: use "
                "another checkpoint"
            )
    return manifest


def refuse_foreign(manifest: CheckpointManifest, run: RunIdentity, where: str) -> None:
    """Raise `CheckpointMismatch` for a checkpoint of another run."""
    if manifest.run == run:
        return
    theirs = f"{manifest.run.name} of {manifest.run.created_at}, settings {manifest.run.config_digest[:12]}"
    ours = f"{run.name} of {run.created_at}, settings {run.config_digest[:12]}"
    raise CheckpointMismatch(
        f"{where} is a checkpoint of another run: of {theirs}; this run is {ours}. Take it out of this run's folder, and "
        "resume the run it belongs to"
    )


def _manifest(file: Path) -> CheckpointManifest:
    try:
        return load(CheckpointManifest, file.read_bytes(), str(file))
    except RecordTooNew as error:
        raise CheckpointMismatch(str(error)) from None
    except (OSError, RecordError) as error:
        raise CheckpointError(
            f"{file.parent} has no readable {MANIFEST} ({error}), so it is no whole checkpoint; use another"
        ) from None


def _files(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in found if name != MANIFEST]


def _seal(file: Path) -> FileSeal:
    digest, num_bytes = xxhash.xxh3_128(), 0
    try:
        with file.open("rb") as opened:
            while piece := opened.read(2**20):
                digest.update(piece)
                num_bytes += len(piece)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error}); use another checkpoint, and check the disk") from error
    return FileSeal(num_bytes=num_bytes, xxh3_128=digest.hexdigest())
