"""A run in an object store, over fsspec: S3 through s3fs, and what else has a PUT that refuses to overwrite.

An object is created by one conditional PUT (`If-None-Match: *`). Where its answer is lost, the client sends it again and
is refused because of its own first try; so on S3 every creation carries a mark of its own in the object's metadata, and
a refusal is looked up against it. (Comparing bytes instead would let two writers of equal records both win.) Elsewhere
such a refusal counts as lost, which costs work, never correctness.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from uuid import uuid4

from agrpo.errors import (
    AgrpoError,
    ConfigError,
    MissingPackage,
    StoreError,
    StoreFull,
    StoreLostWrites,
    StoreNotExclusive,
    StoreReadOnly,
)
from agrpo.queue.filesystems import MANIFEST, names_of
from agrpo.queue.filesystems.copies import LocalCopies, new_folder

if TYPE_CHECKING:
    import builtins

    import pyarrow as pa
    from fsspec import AbstractFileSystem

_CONFLICT_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_WRITER = "agrpo-writer"
_LISTING = "agrpo-files"
_PUBLISHED = "agrpo-published"


class ObjectStore:
    """Everything under `url`. `options` go to fsspec's filesystem (`key`, `secret`, `endpoint_url`, …)."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url.rstrip("/")
        self._options = options
        self._connect()

    def put(self, key: str, data: bytes | memoryview | pa.Buffer, *, exclusive: bool = True) -> bool:
        path, payload = self._path(key), bytes(memoryview(data))
        with _explained("write", f"{self.url}/{key}"):
            if exclusive:
                return self._create(path, payload)
            self._fsspec().pipe_file(path, payload)
            return True

    def get(self, key: str) -> pa.Buffer | None:
        import pyarrow as pa

        path = self._path(key)
        with _explained("read", f"{self.url}/{key}"):
            try:
                return pa.py_buffer(self._fsspec().cat_file(path, **self._whole))
            except (FileNotFoundError, IsADirectoryError):
                return None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with _explained("delete", f"{self.url}/{key}"):
            found = self._fsspec().find(path)
            # Without its manifest a folder does not exist, so the manifest goes first.
            manifest = [name for name in found if name == f"{path}/{MANIFEST}"]
            for names in (manifest, [name for name in found if name not in manifest]):
                if names:
                    self._fsspec().rm(names)
        self.forget(key)

    def put_folder(self, key: str, folder: Path) -> bool:
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        manifest, base = files.pop(MANIFEST, None), self._path(key)
        published = False
        with _explained("write", f"{self.url}/{key}"):
            if self.get(f"{key}/{MANIFEST}") is None:
                for name, path in files.items():
                    self._fsspec().put_file(str(path), f"{base}/{name}")
                listing = _listing(files) if manifest is None else manifest.read_bytes()
                published = self._create(f"{base}/{MANIFEST}", listing)
        shutil.rmtree(folder)
        return published

    def local_folder(self, key: str) -> Path | None:
        manifest = self.get(f"{key}/{MANIFEST}")
        if manifest is None:
            return None
        told = bytes(manifest)
        if self._manifests.get(key, told) != told:
            self.forget(key)
        if key not in self._copies.kept():
            self._drop_orphans()
        try:
            copy = self._copies.get(key, lambda folder: self._download(key, told, folder))
        except _DeletedMeanwhile:
            return None
        self._manifests[key] = told
        return copy

    def forget(self, key: str) -> None:
        self._copies.drop(key)
        self._manifests.pop(key, None)

    def scratch(self) -> Path:
        return new_folder()

    def list(self, prefix: str) -> builtins.list[str]:
        path = self._path(prefix)
        with _explained("read", f"{self.url}/{prefix}"):
            try:
                found = self._fsspec().ls(path, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = {name.removeprefix(f"{path}/").rstrip("/") for name in found if name.startswith(f"{path}/")}
        return sorted(name for name in names if name and not name.startswith("."))

    def _path(self, key: str) -> str:
        return "/".join([self._root, *names_of(key)])

    def _fsspec(self) -> AbstractFileSystem:
        """The client of this process: none survives a fork."""
        if self._process != os.getpid():
            self._connect()
        return self._client

    def _connect(self) -> None:
        self._process = os.getpid()
        self._copies = LocalCopies()
        self._manifests: dict[str, bytes] = {}
        """Of the folders as they were downloaded."""
        self._client, self._root = _open(self.url, self._options)
        self._marks_writers = "s3" in self._client.protocol
        # Else s3fs asks for the size first and then for so many bytes: of a hint that was overwritten in between, a part.
        self._whole = {"max_concurrency": 1} if self._marks_writers else {}

    def _create(self, path: str, payload: bytes) -> bool:
        writer = uuid4().hex
        mark = {"Metadata": {_WRITER: writer}} if self._marks_writers else {}
        for pause in (*_CONFLICT_PAUSES_SECONDS, None):
            try:
                self._fsspec().pipe_file(path, payload, mode="create", **mark)
                return True
            except OSError as error:
                if isinstance(error, FileExistsError) or _status(error) == 412:
                    return self._marks_writers and self._writer_of(path) == writer
                # 409: another conditional request for this key was under way.
                if _status(error) != 409 or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _writer_of(self, path: str) -> str | None:
        with suppress(FileNotFoundError):
            return cast("_S3", self._fsspec()).metadata(path).get(_WRITER)
        return None

    def _drop_orphans(self) -> None:
        """A copy lives as long as its original, so that the run's own retention bounds what lies here."""
        for key in self._copies.kept():
            if self.get(f"{key}/{MANIFEST}") is None:
                self.forget(key)

    def _download(self, key: str, manifest: bytes, folder: Path) -> None:
        base = self._path(key)
        with _explained("read", f"{self.url}/{key}"):
            sizes = self._sizes(base, manifest)
            for name in sizes:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    self._fsspec().get_file(f"{base}/{name}", str(folder / name))
        if self.get(f"{key}/{MANIFEST}") is None:
            raise _DeletedMeanwhile
        for name, size in sizes.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise StoreLostWrites(
                    f"{self.url}/{key}/{name} is published with {size} bytes and cannot be read whole; was the store "
                    f"changed by hand? Restore the file, or resume from an older step"
                )

    def _sizes(self, base: str, manifest: bytes) -> dict[str, int]:
        """Names and bytes of a published folder's files: from our own listing, else as they are found."""
        listing = json.loads(manifest).get(_LISTING)
        if listing is not None:
            return listing
        found = cast("dict[str, dict[str, Any]]", self._fsspec().find(base, detail=True))
        return {name.removeprefix(f"{base}/"): entry["size"] for name, entry in found.items()}


class _S3(Protocol):
    def metadata(self, path: str) -> dict[str, str]: ...


class _DeletedMeanwhile(Exception):
    """The folder was deleted while it was downloaded."""


def _open(url: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    import fsspec
    import fsspec.core

    protocol = url.partition("://")[0]
    if protocol not in fsspec.available_protocols():
        raise ConfigError(
            f'"{url}": fsspec knows no store called "{protocol}"; write a path, s3://bucket/folder, or another of its URLs'
        )
    try:
        # A listing that is kept would hide what others have written since.
        client, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except ImportError as error:
        advice = "pip install 'agrpo[s3]'" if protocol in ("s3", "s3a") else "install it beside agrpo"
        raise MissingPackage(f"{url} needs a package that is not installed ({error}): {advice}") from error
    return client, root


def _listing(files: dict[str, Path]) -> bytes:
    """Names one publishing: a folder that is published again has another manifest, also where its sizes are the same."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    return json.dumps({_LISTING: sizes, _PUBLISHED: uuid4().hex}).encode()


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error of s3fs."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode")


@contextmanager
def _explained(doing: str, url: str) -> Generator[None]:
    """Turn whatever fsspec's backends raise (their own classes, botocore's, aiohttp's) into `StoreError`s."""
    try:
        yield
    except AgrpoError:
        raise
    except Exception as error:
        raise _explanation(doing, url, error) from error


def _explanation(doing: str, url: str, error: Exception) -> StoreError:
    what = f"cannot {doing} {url}: {type(error).__name__}: {error}"
    if _status(error) == 507:
        return StoreFull(f"{what}. Make room in the store, then resume the run")
    if getattr(error, "errno", None) == errno.ENOSPC:
        return StoreFull(f"{what}. Copies are kept in {tempfile.gettempdir()}: make room there, or set TMPDIR")
    if doing != "read" and isinstance(error, PermissionError | NotImplementedError):
        return StoreReadOnly(
            f"{what}. The run needs the right to put and delete objects there; or choose another run.dir"
        )
    if _status(error) == 501:
        return StoreNotExclusive(f"{what}. The store must understand If-None-Match on PUT; choose another run.dir")
    return StoreError(f"{what}. Check that the bucket exists, its credentials and its endpoint; then resume the run")
