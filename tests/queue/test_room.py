"""Room: a run stops before its disk is full, and says what takes how much."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agrpo.errors import StoreFull
from agrpo.queue.room import Room, taken_bytes
from agrpo.queue.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(str(tmp_path / "run"), {"name": "test"})
    for name, size in (("groups/a", 5000), ("groups/deep/b", 2000), ("weights/c", 1500), ("run.duckdb", 400)):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    return made


def test_what_a_run_takes_is_counted_by_place(folder: RunFolder):
    taken = taken_bytes(Path(folder.url))
    del taken["run.json"], taken[".tmp"]
    assert taken == {"groups": 7000, "weights": 1500, "run.duckdb": 400}


def test_a_run_above_its_cap_is_told_so_with_what_takes_most(folder: RunFolder):
    taken = sum(taken_bytes(Path(folder.url)).values())
    Room(folder, max_bytes=taken, min_free_bytes=0).check()
    expected = r"takes 8\.97 kB \(groups 7 kB, weights 1\.5 kB, .* may take 8 kB \(store\.max_bytes\).*agrpo resume"
    with pytest.raises(StoreFull, match=expected):
        Room(folder, max_bytes=8000, min_free_bytes=0).check()


def test_a_disk_with_less_free_than_is_to_stay_is_told_of(folder: RunFolder):
    expected = (
        rf"are free on the disk of {re.escape(folder.url)}, and 1e\+12 GB are to stay free \(store.min_free_bytes\)"
    )
    with pytest.raises(StoreFull, match=expected):
        Room(folder, max_bytes=None, min_free_bytes=10**21).check()


def test_a_small_disk_is_left_before_it_is_full(small_disk: Path):
    folder = RunFolder.create(str(small_disk / "run"), {"name": "test"})
    room = Room(folder, max_bytes=None, min_free_bytes=200_000)
    ticket = 0
    with pytest.raises(StoreFull, match=r"(19\d|1[0-8]\d) kB are free .*200 kB are to stay free"):
        while True:
            room.check()
            folder.groups.publish(ticket, b"x" * 30_000)
            ticket += 1
    assert folder.groups.numbers() == list(range(ticket))
    assert folder.groups.publish(ticket, b"there is still room to end well")


def test_files_that_vanish_while_they_are_counted_are_not_there(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    from agrpo.queue import room

    found = room._entries

    def vanishing(place: Path) -> list:
        entries = found(place)
        if place.name == "groups":
            (place / "a").unlink()
        return entries

    monkeypatch.setattr(room, "_entries", vanishing)
    assert taken_bytes(Path(folder.url))["groups"] == 2000
