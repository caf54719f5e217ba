"""S3: lost replies, conflicts, servers that ignore the condition, folders without a rename, forks."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.errors import StoreError, StoreFull, StoreLostWrites, StoreNotExclusive, StoreReadOnly
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.object_store import ObjectStore
from agrpo.queue.filesystems.opening import probe
from tests.queue.conftest import contents
from tests.queue.faulty_proxy import Fault, faulty_proxy

OpenS3 = Callable[..., ObjectStore]
Build = Callable[[Filesystem, dict[str, bytes]], Path]


def first_put(fault: Fault) -> Callable[[str, str], Fault]:
    """The fault for the first PUT, none for the others."""
    faults = iter([fault])
    return lambda method, _path: next(faults, Fault.NONE) if method == "PUT" else Fault.NONE


def every_put(fault: Fault) -> Callable[[str, str], Fault]:
    return lambda method, _path: fault if method == "PUT" else Fault.NONE


def test_a_put_whose_reply_was_lost_is_recognised_as_ours(s3_endpoint: str, open_s3: OpenS3):
    with faulty_proxy(s3_endpoint, first_put(Fault.LOST_REPLY)) as endpoint:
        assert open_s3(endpoint).put("claim", b"ours")
    assert not open_s3().put("claim", b"ours")
    assert open_s3().get("claim").to_pybytes() == b"ours"


def test_a_lost_reply_does_not_make_anothers_object_ours(s3_endpoint: str, open_s3: OpenS3):
    open_s3().put("claim", b"equal")
    with faulty_proxy(s3_endpoint, first_put(Fault.LOST_REPLY)) as endpoint:
        assert not open_s3(endpoint).put("claim", b"equal")


def test_a_conflict_is_tried_again_until_it_is_decided(s3_endpoint: str, open_s3: OpenS3):
    with faulty_proxy(s3_endpoint, first_put(Fault.CONFLICT)) as endpoint:
        assert open_s3(endpoint).put("claim", b"ours")
    with faulty_proxy(s3_endpoint, first_put(Fault.CONFLICT)) as endpoint:
        assert not open_s3(endpoint).put("claim", b"late")


def test_a_listing_shows_what_another_client_has_just_written(s3_endpoint: str, open_s3: OpenS3):
    with faulty_proxy(s3_endpoint, every_put(Fault.NONE)) as endpoint:
        reader, writer = open_s3(), open_s3(endpoint)
        for number in range(3):
            writer.put(f"slots/{number}", b"")
            assert reader.list("slots") == [str(found) for found in range(number + 1)]


def test_an_object_is_read_by_one_request_and_never_by_halves(s3_endpoint: str, open_s3: OpenS3):
    writer, asked = open_s3(), list[str]()
    writer.put("hint", b"short", exclusive=False)

    def overwrite_first(method: str, _path: str) -> Fault:
        asked.append(method)
        if method == "GET":
            writer.put("hint", b"a longer one", exclusive=False)
        return Fault.NONE

    with faulty_proxy(s3_endpoint, overwrite_first) as endpoint:
        assert open_s3(endpoint).get("hint").to_pybytes() == b"a longer one"
    assert asked == ["GET"]


def test_the_probe_refuses_a_server_that_ignores_the_condition(s3_endpoint: str, open_s3: OpenS3):
    with faulty_proxy(s3_endpoint, every_put(Fault.UNCONDITIONAL)) as endpoint:
        with pytest.raises(StoreNotExclusive, match=r"found b'second' where b'first'.*If-None-Match"):
            probe(open_s3(endpoint))
    assert open_s3().list("") == []


@pytest.mark.parametrize(("fault", "error"), [(Fault.FORBIDDEN, StoreReadOnly), (Fault.FULL, StoreFull)])
def test_no_right_and_no_room_are_said(s3_endpoint: str, open_s3: OpenS3, fault: Fault, error: type[StoreError]):
    with faulty_proxy(s3_endpoint, every_put(fault)) as endpoint:
        with pytest.raises(error, match=r"cannot write s3://runs/.*/claim"):
            open_s3(endpoint).put("claim", b"")
    assert open_s3().list("") == []


def test_a_bucket_that_does_not_exist_is_said_at_the_first_write(s3_endpoint: str):
    store = ObjectStore("s3://nowhere/run", key="x", secret="x", endpoint_url=s3_endpoint)
    with pytest.raises(StoreError, match=r"cannot write s3://nowhere/run/.*Check that the bucket exists"):
        probe(store)


def test_a_folder_without_its_manifest_does_not_exist_and_can_still_be_published(open_s3: OpenS3, build: Build):
    store = open_s3()
    store.put("weights/1/a", b"half an upload")
    assert store.local_folder("weights/1") is None
    assert store.put_folder("weights/1", build(store, {"a": b"whole", "b/c": b"x"}))
    assert contents(store.local_folder("weights/1")) == {"a": b"whole", "b/c": b"x"}
    assert json.loads(store.get("weights/1/MANIFEST.json").to_pybytes())["agrpo-files"] == {"a": 5, "b/c": 1}


def test_what_is_published_again_is_downloaded_again(open_s3: OpenS3, build: Build):
    writer, reader = open_s3(), open_s3()
    writer.put_folder("weights/1", build(writer, {"w": b"damaged"}))
    assert contents(reader.local_folder("weights/1")) == {"w": b"damaged"}
    writer.delete("weights/1")
    writer.put_folder("weights/1", build(writer, {"w": b"written"}))
    assert contents(reader.local_folder("weights/1")) == {"w": b"written"}


def test_a_damaged_download_that_is_forgotten_is_downloaded_again(open_s3: OpenS3, build: Build):
    store = open_s3()
    store.put_folder("weights/1", build(store, {"w": b"written"}))
    copy = store.local_folder("weights/1")
    (copy / "w").write_bytes(b"damaged")
    assert store.local_folder("weights/1") == copy
    store.forget("weights/1")
    assert contents(store.local_folder("weights/1")) == {"w": b"written"}


def test_an_upload_that_breaks_off_publishes_nothing_and_keeps_the_folder(
    s3_endpoint: str, open_s3: OpenS3, build: Build
):
    files = {"a": b"1", "b": b"2"}
    with faulty_proxy(
        s3_endpoint, lambda _method, path: Fault.FORBIDDEN if path.endswith("/b") else Fault.NONE
    ) as endpoint:
        store = open_s3(endpoint)
        folder = build(store, files)
        with pytest.raises(StoreReadOnly):
            store.put_folder("weights/1", folder)
    assert open_s3().local_folder("weights/1") is None
    assert contents(folder) == files


@pytest.mark.parametrize("damage", [b"", b"longer than before"])
def test_a_published_file_of_another_size_is_a_lost_write(open_s3: OpenS3, build: Build, damage: bytes):
    store = open_s3()
    store.put_folder("weights/1", build(store, {"w": b"1234"}))
    store.put("weights/1/w", damage, exclusive=False)
    with pytest.raises(StoreLostWrites, match="published with 4 bytes"):
        open_s3().local_folder("weights/1")


def test_a_folder_deleted_during_its_download_does_not_exist(s3_endpoint: str, open_s3: OpenS3, build: Build):
    open_s3().put_folder("weights/1", build(open_s3(), {"w": b"1"}))

    def delete_before_the_file_is_read(method: str, path: str) -> Fault:
        if method == "GET" and path.endswith("/w"):
            open_s3().delete("weights/1")
        return Fault.NONE

    with faulty_proxy(s3_endpoint, delete_before_the_file_is_read) as endpoint:
        assert open_s3(endpoint).local_folder("weights/1") is None


def test_copies_go_when_their_originals_have_gone(open_s3: OpenS3, build: Build):
    learner, generator = open_s3(), open_s3()
    copies = []
    for version in range(3):
        learner.put_folder(f"weights/{version}", build(learner, {"w": b"%d" % version}))
        copies.append(generator.local_folder(f"weights/{version}"))
        assert generator.local_folder(f"weights/{version}") == copies[version]
        if version:
            learner.delete(f"weights/{version - 1}")
    assert [copy.exists() for copy in copies] == [False, True, True]
    assert contents(copies[2]) == {"w": b"2"}


@pytest.mark.slow
def test_an_object_of_many_parts_is_created_once(open_s3: OpenS3):
    large = bytes(101 * 2**20)
    assert open_s3().put("groups/1", large)
    assert not open_s3().put("groups/1", large)
    assert open_s3().get("groups/1").size == len(large)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_store_opened_before_a_fork_works_after_it(
    open_s3: OpenS3, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store = open_s3()
    store.put_folder("weights/1", build(store, {"w": b"1"}))
    copy = store.local_folder("weights/1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = multiprocessing.get_context("fork").Process(target=_work_in_a_child, args=(store,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert store.get("child").to_pybytes() == b"1"
    assert contents(copy) == {"w": b"1"}
    assert store.local_folder("weights/1") == copy


def _work_in_a_child(store: ObjectStore) -> None:
    folder = store.local_folder("weights/1")
    assert store.put("child", (folder / "w").read_bytes())
