"""The three kinds of store, each real: a folder, this process's memory, and S3 as moto's server speaks it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.filesystems.memory import MemoryFilesystem
from agrpo.queue.filesystems.object_store import ObjectStore

KINDS = ("local", "memory", "s3")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 server that holds the bucket `runs`."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    fsspec.filesystem("s3", key="x", secret="x", endpoint_url=endpoint).makedirs("runs", exist_ok=True)
    yield endpoint
    server.stop()


@pytest.fixture
def open_s3(s3_endpoint: str) -> Callable[..., ObjectStore]:
    """Open this test's own folder of the bucket, through any endpoint."""
    url = f"s3://runs/{uuid4().hex}"
    return lambda endpoint=s3_endpoint: ObjectStore(url, key="x", secret="x", endpoint_url=endpoint)


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Filesystem]:
    """Open one and the same store again and again, as each process of a run does."""
    if request.param == "s3":
        return request.getfixturevalue("open_s3")
    name = uuid4().hex
    return lambda: LocalFilesystem(tmp_path / "run") if request.param == "local" else MemoryFilesystem(name)


@pytest.fixture
def store(open_store: Callable[[], Filesystem]) -> Filesystem:
    return open_store()


@pytest.fixture
def build() -> Callable[..., Path]:
    """Make a folder with the given files in a store's scratch."""

    def make(store: Filesystem, files: dict[str, bytes]) -> Path:
        folder = store.scratch()
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a disk of one mebibyte. Needs root and the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a small disk is mounted by root only")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no right to mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
