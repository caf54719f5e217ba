"""A folder on a disk: what a full or read-only disk, a dead writer and a lying network mount do to it."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agrpo.errors import StoreError, StoreFull, StoreNotExclusive, StoreReadOnly
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.filesystems.opening import probe
from tests.queue.conftest import contents

Build = Callable[[Filesystem, dict[str, bytes]], Path]
MEBIBYTE = 2**20


@pytest.fixture
def read_only(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that holds `run.json` and may not be written: its mode for a user, its mount for root."""
    folder = request.getfixturevalue("small_disk") if os.geteuid() == 0 else tmp_path
    LocalFilesystem(folder).put("run.json", b"{}")
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    else:
        for path in (folder / ".tmp", folder):
            path.chmod(0o555)
    yield folder
    if os.geteuid() != 0:
        folder.chmod(0o755)


def test_a_full_disk_is_said_and_leaves_nothing_half_written(small_disk: Path):
    store = LocalFilesystem(small_disk)
    assert store.put("groups/1", b"x" * (MEBIBYTE // 2))
    with pytest.raises(StoreFull, match=r"groups/2: No space left on device.*make room"):
        store.put("groups/2", b"y" * MEBIBYTE)
    assert contents(small_disk) == {"groups/1": b"x" * (MEBIBYTE // 2)}
    assert store.put("groups/2", b"y")


def test_a_disk_full_during_a_checkpoint_leaves_the_previous_one(small_disk: Path, build: Build):
    store = LocalFilesystem(small_disk)
    store.put_folder("checkpoints/1-0", build(store, {"model": b"1" * (MEBIBYTE // 4)}))
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (MEBIBYTE // 2))
    folder = build(store, {"model": b"2" * 1000})
    with pytest.raises(OSError, match="No space left"):
        (folder / "optimizer").write_bytes(b"2" * MEBIBYTE)
    filler.unlink()
    assert store.list("checkpoints") == ["1-0"]
    assert contents(store.local_folder("checkpoints/1-0")) == {"model": b"1" * (MEBIBYTE // 4)}


def test_a_read_only_folder_is_said_and_can_still_be_read(read_only: Path):
    store = LocalFilesystem(read_only)
    for write in (lambda: store.put("claim", b""), lambda: store.delete("run.json"), store.scratch):
        with pytest.raises(StoreReadOnly, match=rf"{read_only}.*must be able to write there"):
            write()
    assert store.get("run.json").to_pybytes() == b"{}"
    assert store.list("") == ["run.json"]


def test_the_probe_refuses_a_read_only_folder(read_only: Path):
    with pytest.raises(StoreReadOnly):
        probe(LocalFilesystem(read_only))


def test_nothing_is_made_before_something_is_written(tmp_path: Path):
    store = LocalFilesystem(tmp_path / "runs" / "one")
    assert store.list("") == []
    assert store.get("run.json") is None
    assert not (tmp_path / "runs").exists()
    assert store.put("run.json", b"{}")


def test_a_name_below_an_object_is_refused_with_its_path(tmp_path: Path):
    store = LocalFilesystem(tmp_path)
    store.put("run.json", b"{}")
    with pytest.raises(StoreError, match=r"cannot write .*run\.json/below"):
        store.put("run.json/below", b"")
    assert store.get("run.json/below") is None


def killed_writer(folder: Path, expression: str, times: int) -> list[str]:
    """What a process printed of an expression that writes into `store`, before it was killed."""
    program = (
        "import pathlib, time; from agrpo.queue.filesystems.local import LocalFilesystem; "
        f"store = LocalFilesystem(pathlib.Path({str(folder)!r})); "
        f"[print({expression}, flush=True) for _ in range({times})]; time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        told = [process.stdout.readline().strip() for _ in range(times)]
        process.kill()
    return told


def test_what_a_dead_writer_left_is_swept_after_an_hour(tmp_path: Path):
    old, young, growing = (Path(line) for line in killed_writer(tmp_path, "store.scratch()", 3))
    (old / "shard").write_bytes(b"x")
    (growing / "shard").write_bytes(b"x")
    (tmp_path / ".tmp" / "object").write_bytes(b"x")
    two_hours_ago = time.time() - 7200
    for path in (old / "shard", old, growing, tmp_path / ".tmp" / "object"):
        os.utime(path, (two_hours_ago, two_hours_ago))
    LocalFilesystem(tmp_path)
    assert set((tmp_path / ".tmp").iterdir()) == {young, growing}


def test_what_a_dead_writer_of_this_machine_left_is_swept_at_once(tmp_path: Path):
    old, young = (Path(line) for line in killed_writer(tmp_path, "store.scratch()", 2))
    foreign = tmp_path / ".tmp" / "0badc0de-of-another-machine"
    foreign.mkdir()
    a_minute_ago = time.time() - 60
    for path in (old, foreign):
        os.utime(path, (a_minute_ago, a_minute_ago))
    LocalFilesystem(tmp_path)
    assert set((tmp_path / ".tmp").iterdir()) == {young, foreign}


def test_what_a_living_writer_holds_is_not_swept_although_a_clock_has_jumped(tmp_path: Path, monkeypatch):
    writer, link, now = LocalFilesystem(tmp_path), os.link, time.time
    scratch = writer.scratch()
    (scratch / "model").write_bytes(b"x" * 10)

    def jump_and_link(source: Path, target: Path) -> None:
        monkeypatch.setattr(time, "time", lambda: now() + 7200)
        LocalFilesystem(tmp_path)
        link(source, target)

    monkeypatch.setattr(os, "link", jump_and_link)
    assert writer.put("claim", b"ours")
    assert writer.put_folder("weights/1", scratch)
    assert contents(tmp_path) == {"claim": b"ours", "weights/1/model": b"x" * 10}


def test_what_a_writer_abandons_while_it_lives_is_held_no_longer_than_the_writer_is_used(tmp_path: Path):
    writer = LocalFilesystem(tmp_path)
    scratch = writer.scratch()
    os.utime(scratch, (0, 0))
    LocalFilesystem(tmp_path)
    assert scratch.exists()
    del writer
    gc.collect()
    LocalFilesystem(tmp_path)
    assert not scratch.exists()


def test_a_writer_keeps_no_file_open_for_what_it_has_published_or_removed(tmp_path: Path):
    store = LocalFilesystem(tmp_path)
    (store.scratch() / "w").write_bytes(b"1")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        published, removed = store.scratch(), store.scratch()
        (published / "w").write_bytes(b"1")
        assert store.put_folder(f"weights/{number}", published)
        removed.rmdir()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_link_whose_reply_was_lost_is_recognised_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def link_and_lose_the_reply(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))

    monkeypatch.setattr(os, "link", link_and_lose_the_reply)
    assert LocalFilesystem(tmp_path).put("claim", b"ours")


def test_losing_to_a_writer_that_came_between_is_no_lost_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link, store = os.link, LocalFilesystem(tmp_path)

    def link_after_another(source: Path, target: Path) -> None:
        target.write_bytes(b"theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", link_after_another)
    assert not store.put("claim", b"ours")
    assert contents(tmp_path) == {"claim": b"theirs"}


def test_a_filesystem_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreNotExclusive, match="hard links"):
        LocalFilesystem(tmp_path).put("claim", b"")
    assert contents(tmp_path) == {}


def test_a_folder_from_another_mount_is_refused_and_left_alone(tmp_path: Path, small_disk: Path):
    (small_disk / "built").mkdir()
    (small_disk / "built" / "w").write_bytes(b"1")
    with pytest.raises(StoreError, match=r"build it in scratch\(\)"):
        LocalFilesystem(tmp_path / "run").put_folder("weights/1", small_disk / "built")
    assert contents(small_disk) == {"built/w": b"1"}


def test_an_empty_folder_is_never_published(tmp_path: Path):
    store = LocalFilesystem(tmp_path)
    with pytest.raises(AssertionError, match="is empty"):
        store.put_folder("weights/1", store.scratch())


def test_a_loss_of_power_may_bring_back_an_older_hint_and_nothing_else(tmp_path, monkeypatch):
    filesystem, confirmed = LocalFilesystem(tmp_path), []
    filesystem.put("hint/a.json", b"0", exclusive=False)
    filesystem.put("plans/a.json", b"0")
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (confirmed.append(stat.S_ISDIR(os.fstat(file).st_mode)), fsync(file)))
    filesystem.put("hint/a.json", b"1", exclusive=False)
    assert confirmed == [False]
    filesystem.put("plans/b.json", b"1")
    assert confirmed == [False, False, True]
