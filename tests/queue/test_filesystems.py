"""What every store promises, whatever it is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.opening import probe
from tests.queue.conftest import contents

Open = Callable[[], Filesystem]
Build = Callable[[Filesystem, dict[str, bytes]], Path]


def test_what_is_put_is_got_by_all_that_open_the_store(open_store: Open):
    assert open_store().put("groups/000000/000000000007.arrow", b"seven")
    found = open_store().get("groups/000000/000000000007.arrow")
    assert isinstance(found, pa.Buffer)
    assert found.to_pybytes() == b"seven"


@pytest.mark.parametrize(
    "data", [b"bytes", memoryview(b"view"), pa.py_buffer(b"arrow")], ids=["bytes", "view", "arrow"]
)
def test_every_kind_of_bytes_is_stored(store: Filesystem, data: bytes | memoryview | pa.Buffer):
    store.put("object", data)
    assert store.get("object") == pa.py_buffer(bytes(memoryview(data)))


def test_nothing_is_got_where_nothing_is_or_a_folder_is(store: Filesystem):
    store.put("folder/object", b"x")
    assert store.get("nothing") is None
    assert store.get("folder") is None
    assert store.get("folder/nothing") is None


def test_a_second_exclusive_put_loses_and_changes_nothing(open_store: Open):
    assert open_store().put("claim", b"first")
    assert not open_store().put("claim", b"second")
    assert open_store().get("claim").to_pybytes() == b"first"


def test_the_same_bytes_put_twice_win_once(store: Filesystem):
    assert store.put("claim", b"equal")
    assert not store.put("claim", b"equal")


def test_an_empty_object_is_exclusive_too(store: Filesystem):
    assert store.put("void", b"")
    assert not store.put("void", b"")
    assert not store.put("void", b"late")
    assert store.get("void").to_pybytes() == b""


def test_a_hint_is_overwritten(open_store: Open):
    for word in (b"long and old", b"new"):
        assert open_store().put("hint/learner.json", word, exclusive=False)
    assert open_store().get("hint/learner.json").to_pybytes() == b"new"


def test_bytes_once_got_stay_when_the_object_is_overwritten_or_deleted(store: Filesystem):
    store.put("hint", b"old", exclusive=False)
    held = store.get("hint")
    store.put("hint", b"new", exclusive=False)
    store.delete("hint")
    assert held.to_pybytes() == b"old"


def test_a_listing_names_what_lies_directly_below_in_order(open_store: Open):
    store = open_store()
    for key in ("acks/b/1", "acks/a", "acks/b/2", "ackses/c", "run.json"):
        store.put(key, b"")
    assert open_store().list("acks") == ["a", "b"]
    assert open_store().list("acks/b") == ["1", "2"]
    assert open_store().list("") == ["acks", "ackses", "run.json"]
    assert open_store().list("acks/a") == open_store().list("nothing") == []


def test_deleting_takes_an_object_or_a_whole_folder_and_nothing_beside_it(store: Filesystem):
    for key in ("a/1", "a/10", "b/c/1", "b/c/d/2", "bc"):
        store.put(key, b"x")
    for key in ("a/1", "b", "nothing", "bc/nothing"):
        store.delete(key)
    assert store.list("") == ["a", "bc"]
    assert store.list("a") == ["10"]


def test_a_folder_is_published_once_and_taken_away(open_store: Open, build: Build):
    store = open_store()
    first, second = build(store, {"w": b"1", "deep/er": b"2"}), build(store, {"w": b"3"})
    assert store.put_folder("weights/1-abc", first)
    assert not open_store().put_folder("weights/1-abc", second)
    assert not first.exists()
    assert not second.exists()
    assert contents(open_store().local_folder("weights/1-abc")) == {"w": b"1", "deep/er": b"2"}
    assert open_store().get("weights/1-abc/deep/er").to_pybytes() == b"2"
    assert open_store().list("weights") == ["1-abc"]


def test_a_folder_keeps_the_manifest_it_brings(store: Filesystem, build: Build):
    files = {"MANIFEST.json": b'{"step": 3}', "optimizer": b"o" * 1000}
    assert store.put_folder("checkpoints/3-0", build(store, files))
    assert contents(store.local_folder("checkpoints/3-0")) == files


def test_a_deleted_folder_is_gone_and_its_copy_with_it(store: Filesystem, build: Build):
    assert store.local_folder("weights/1") is None
    store.put_folder("weights/1", build(store, {"w": b"1"}))
    copy = store.local_folder("weights/1")
    store.delete("weights/1")
    assert store.local_folder("weights/1") is None
    assert not copy.exists()


def test_two_scratch_folders_are_apart_and_seen_by_nobody(store: Filesystem):
    first, second = store.scratch(), store.scratch()
    assert first != second
    assert list(first.iterdir()) == []
    assert store.list("") == []


@pytest.mark.parametrize("key", ["/absolute", "a//b", "../above", "a/.hidden", "trailing/"])
def test_a_key_with_an_empty_or_hidden_name_is_a_broken_invariant(store: Filesystem, key: str):
    with pytest.raises(AssertionError, match="is no key"):
        store.put(key, b"")


def test_eight_racing_writers_give_each_slot_one_winner_and_its_bytes(open_store: Open):
    winners: dict[int, list[int]] = {slot: [] for slot in range(20)}
    start = threading.Barrier(8)

    def race(writer: int) -> None:
        store = open_store()
        start.wait()
        for slot, won in winners.items():
            if store.put(f"race/{slot:04d}", bytes([writer]) * 2000):
                won.append(writer)

    racers = [threading.Thread(target=race, args=(writer,)) for writer in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    found = {slot: open_store().get(f"race/{slot:04d}").to_pybytes() for slot in winners}
    assert [len(won) for won in winners.values()] == [1] * 20
    assert found == {slot: bytes(won) * 2000 for slot, won in winners.items()}


def test_a_sound_store_passes_the_probe_and_keeps_no_trace_of_it(store: Filesystem):
    probe(store)
    assert store.list("") == []
