"""Archiving: what no recovery needs leaves the queue, stays readable, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.errors import StoreLostWrites
from agrpo.queue.archive import archiving, chunk
from agrpo.queue.archive.archiving import Archiver
from agrpo.queue.archive.chunk import StoredObject
from agrpo.queue.archive.floors import archive_floor, recovery_floors
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.progress import Base
from tests.queue.archived_run import a_run, a_slot, archived, checkpoint, each, fill, lying


@pytest.fixture
def four_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "TICKETS_PER_FILE", 4)


def floored(folder: RunFolder, *floors: int) -> RunFolder:
    for step, floor in enumerate(floors):
        checkpoint(folder, step, floor)
    return folder


def contents(folder: RunFolder) -> dict[str, dict[int, bytes]]:
    """What every queue gives to its readers."""
    topics = {"groups": folder.groups, "scored": folder.scored}
    found = {name: {n: bytes(topic.read(n)) for n in topic.numbers()} for name, topic in topics.items()}
    claims = {ticket: repr(folder.claims.holder(ticket)).encode() for ticket in folder.claims.tickets(0)}
    return {**found, "claims": claims}


def archive_until_done(folder: RunFolder) -> None:
    archiver = Archiver(folder)
    while archiver.archive():
        pass


@pytest.mark.usefixtures("four_a_file")
def test_what_lies_below_both_floors_is_archived_and_read_as_before(open_store: Callable[[], Filesystem]):
    folder = RunFolder(open_store())
    folder.write_base(Base(attempt=0))
    for ticket in range(11):
        fill(folder, ticket)
    before = contents(folder)
    archive_until_done(floored(folder, 10, 9))
    assert lying(folder) == each([8, 9, 10])
    files = ["000000000000-000000000003", "000000000004-000000000007"]
    assert archived(folder) == each(files)
    assert contents(folder) == contents(RunFolder(open_store())) == before
    assert group_from_arrow(folder.groups.demand(2)).ticket == 2


@pytest.mark.usefixtures("four_a_file")
def test_each_look_archives_one_file_of_each_queue():
    folder = floored(a_run(tickets=12), 12, 12)
    archiver = Archiver(folder)
    assert [archiver.archive() for _ in range(4)] == [12, 12, 12, 0]


def test_floors_are_of_the_two_newest_checkpoints_of_the_lineage():
    folder = a_run()
    assert (recovery_floors(folder), archive_floor(folder)) == ([], 0)
    checkpoint(folder, 0, floor=0)
    checkpoint(folder, 3, floor=30)
    assert (recovery_floors(folder), archive_floor(folder)) == ([30, 0], 0)
    checkpoint(folder, 5, floor=50)
    assert (recovery_floors(folder), archive_floor(folder)) == ([50, 30], 30)
    folder.write_base(Base(attempt=1, parent=0, base_step=4))
    assert (recovery_floors(folder), archive_floor(folder)) == ([30, 0], 0), "step 5 is off the lineage"
    folder.write_base(Base(attempt=2, void=True))
    checkpoint(folder, 5, floor=51, attempt=1)
    assert archive_floor(folder) == 30


def test_a_checkpoint_deleted_while_they_are_listed_holds_archiving_up_and_breaks_nothing(monkeypatch):
    folder = floored(a_run(), 300, 300)
    delete = folder.filesystem.get
    monkeypatch.setattr(folder.filesystem, "get", lambda key: None if "00000001-" in key else delete(key))
    assert (recovery_floors(folder), archive_floor(folder)) == ([300], 0)


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(caplog):
    folder = floored(a_run(), 100, 200, 300)
    folder.filesystem.put("checkpoints/00000002-000000/MANIFEST.json", b"{", exclusive=False)
    assert recovery_floors(folder) == [200, 100]
    assert "nothing is archived on the word of checkpoints/00000002-000000" in caplog.text


@pytest.mark.usefixtures("four_a_file")
def test_at_the_end_of_a_run_the_queue_is_empty_and_all_can_be_read():
    folder = a_run(tickets=6)
    folder.claims.take(6, owner="generator-0", base=0)
    before = contents(folder)
    assert Archiver(folder).archive_all() == 19
    assert lying(folder) == each([])
    assert archived(folder)["claims"] == ["000000000000-000000000003", "000000000004-000000000006"]
    assert contents(RunFolder(folder.filesystem)) == before
    assert Archiver(folder).archive_all() == 0


@pytest.mark.usefixtures("four_a_file")
def test_an_archiver_that_slept_while_the_run_was_taken_up_again_leaves_the_rest_alone():
    folder, looks = a_run(tickets=8), iter([True, False])
    assert Archiver(folder).archive_all(lambda: next(looks)) == 4
    assert lying(folder) == {**each(list(range(8))), "groups": [4, 5, 6, 7]}


@pytest.mark.usefixtures("four_a_file")
def test_a_run_that_goes_on_after_its_end_archives_the_rest_of_a_file_apart():
    folder = a_run(tickets=5)
    folder.claims.take(5, owner="generator-0", base=0)
    Archiver(folder).archive_all()
    assert not folder.claims.take(5, owner="generator-1", base=0)
    assert folder.claims.take(5, owner="generator-1", base=0, number_try=folder.claims.holder(5).number_try + 1)
    assert folder.groups.publish(5, a_slot(5))
    assert folder.claims.lowest_free(0) == 6
    fill(folder, 6)
    before = contents(folder)
    Archiver(folder).archive_all()
    assert archived(folder)["groups"][1:] == ["000000000004-000000000004", "000000000005-000000000006"]
    assert (folder.claims.holder(5).number_try, folder.claims.base_of(5)) == (1, 0)
    assert contents(folder) == before


@pytest.mark.usefixtures("four_a_file")
def test_a_writer_that_slept_through_the_archiving_is_refused_and_leaves_nothing(open_store: Callable[[], Filesystem]):
    folder = RunFolder(open_store())
    folder.write_base(Base(attempt=0))
    for ticket in range(4):
        fill(folder, ticket)
    slept = RunFolder(open_store())
    before = contents(folder)
    archive_until_done(floored(folder, 4, 4))
    assert not slept.groups.publish(2, a_slot(2, version=9))
    assert not slept.claims.take(2, owner="slept", base=7)
    assert lying(slept) == each([])
    assert contents(slept) == before
    assert folder.claims.base_of(2) == 0


@pytest.mark.usefixtures("four_a_file")
def test_what_a_writer_left_that_was_killed_before_it_saw_the_archive_is_unlinked():
    folder = floored(a_run(tickets=4), 4, 4)
    archive_until_done(folder)
    before = contents(folder)
    folder.filesystem.put(folder.groups.key(2), a_slot(2, version=9))
    archive_until_done(folder)
    assert lying(folder)["groups"] == []
    assert contents(folder) == before


class Killed(Exception):
    """The archiver is killed before one of its writes."""


@pytest.mark.usefixtures("four_a_file")
def test_an_archiver_killed_before_any_of_its_writes_loses_nothing_and_the_next_one_finishes(monkeypatch):
    for survived in itertools.count():
        folder = floored(a_run(tickets=5), 4, 4)
        before, left = contents(folder), itertools.count()

        def write(name: str, act: Callable, left=left, survived=survived) -> Callable:
            def killed_or_done(key: str, *arguments: object) -> object:
                if next(left) == survived:
                    raise Killed(f"before {name} {key}")
                return act(key, *arguments)

            return killed_or_done

        with monkeypatch.context() as patched:
            for name in ("put", "delete"):
                patched.setattr(folder.filesystem, name, write(name, getattr(folder.filesystem, name)))
            try:
                archive_until_done(folder)
                break
            except Killed:
                pass
        assert contents(RunFolder(folder.filesystem)) == before
        archive_until_done(RunFolder(folder.filesystem))
        assert lying(folder) == each([4])
        assert contents(folder) == before
    assert survived == 3 * (1 + 4), "a file and its four objects of each queue"


def overtaken(monkeypatch: pytest.MonkeyPatch, page: object, name: str, act: Callable[[], None]) -> None:
    """Let something happen just before the archiver first calls this."""
    called, overtake = getattr(page, name), iter([act])

    def call(*arguments: object) -> object:
        next(overtake, lambda: None)()
        return called(*arguments)

    monkeypatch.setattr(page, name, call)


@pytest.mark.usefixtures("four_a_file")
def test_what_another_archivers_file_does_not_hold_stays_and_is_archived_next(monkeypatch):
    folder = floored(a_run(tickets=4), 4, 4)
    before = contents(folder)

    def archive_less() -> None:
        less = [StoredObject(f"{n:012d}.arrow", folder.groups.demand(n)) for n in (0, 2, 3)]
        folder.filesystem.put("archive/groups/000000000000-000000000003.parquet", chunk.encode(less))

    overtaken(monkeypatch, chunk, "encode", archive_less)
    Archiver(folder).archive()
    assert lying(folder)["groups"] == [1]
    archive_until_done(RunFolder(folder.filesystem))
    assert archived(folder)["groups"] == ["000000000000-000000000003", "000000000001-000000000001"]
    assert contents(folder) == before


@pytest.mark.usefixtures("four_a_file")
def test_a_sleepers_slot_is_not_archived_where_another_archiver_was_first(monkeypatch):
    folder = floored(a_run(tickets=4), 4, 4)
    before = contents(folder)

    def archive_and_wake_a_sleeper() -> None:
        archive_until_done(RunFolder(folder.filesystem))
        folder.filesystem.put(folder.groups.key(2), a_slot(2, version=9))

    overtaken(monkeypatch, archiving, "_parts", archive_and_wake_a_sleeper)
    Archiver(folder).archive()
    assert archived(folder)["groups"] == ["000000000000-000000000003"]
    assert contents(RunFolder(folder.filesystem)) == before
    assert lying(folder)["groups"] == []


def test_two_archivers_at_once_make_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archiving, "TICKETS_PER_FILE", 8)
    folder = floored(a_run(str(tmp_path / "run"), tickets=48), 48, 48)
    before = contents(folder)
    archivers = [threading.Thread(target=archive_until_done, args=(RunFolder.open(folder.url),)) for _ in range(2)]
    for archiver in archivers:
        archiver.start()
    seen = [contents(RunFolder.open(folder.url)) == before for _ in range(5)]
    for archiver in archivers:
        archiver.join()
    assert seen == [True] * 5
    assert lying(folder) == each([])
    assert [len(files) for files in archived(folder).values()] == [6, 6, 6]
    assert contents(folder) == before


@pytest.mark.usefixtures("four_a_file")
def test_a_reader_that_listed_a_slot_still_reads_it_after_it_is_archived():
    folder = floored(a_run(tickets=4), 4, 4)
    reader = RunFolder(folder.filesystem)
    listed = reader.scored.numbers()
    archive_until_done(folder)
    assert [reader.scored.read(number) is not None for number in listed] == [True] * 4
    assert reader.scored.exists(3)
    assert reader.scored.numbers(2) == [2, 3]


@pytest.mark.usefixtures("four_a_file")
def test_the_next_free_ticket_is_above_every_one_that_was_ever_claimed():
    folder = a_run()
    assert folder.claims.next_free() == 0
    for ticket in (0, 1, 2, 3, 2000):
        folder.claims.take(ticket, owner="g", base=0)
    assert folder.claims.next_free() == 2001
    Archiver(folder).archive_all()
    assert RunFolder(folder.filesystem).claims.next_free() == 2001
    folder.claims.take(5, owner="g", base=0)
    assert folder.claims.next_free() == 2001


@pytest.mark.usefixtures("four_a_file")
def test_a_missing_archive_is_named_with_its_tickets():
    folder = floored(a_run(tickets=12), 12, 12)
    archive_until_done(folder)
    reader = RunFolder(folder.filesystem)
    assert reader.groups.exists(6)
    assert reader.groups.exists(0)
    folder.filesystem.delete("archive/groups/000000000004-000000000007.parquet")
    expected = r"000000000004-000000000007\.parquet is gone, with groups of tickets 4 to 7"
    with pytest.raises(StoreLostWrites, match=expected):
        reader.groups.read(7)
    with pytest.raises(
        StoreLostWrites,
        match=r"groups of ticket 6 was written .*expected it in archive/groups/000000000004-000000000007\.parquet",
    ):
        RunFolder(folder.filesystem).groups.demand(6)


@pytest.mark.usefixtures("four_a_file")
def test_a_missing_archive_is_named_as_it_was_where_nothing_follows_it():
    folder = a_run(tickets=6)
    Archiver(folder).archive_all()
    folder.filesystem.delete("archive/groups")
    expected = r"expected it in archive/groups/000000000004-000000000005\.parquet"
    with pytest.raises(StoreLostWrites, match=expected):
        RunFolder(folder.filesystem).groups.demand(4)
    folder.filesystem.delete("archive")
    with pytest.raises(
        StoreLostWrites, match="expected it in a file of archive/groups that ends with ticket 4 or later"
    ):
        RunFolder(folder.filesystem).groups.demand(4)


def test_large_tickets_are_split_over_several_files_with_all_tries_of_a_ticket_in_one(monkeypatch):
    folder = a_run(tickets=5)
    monkeypatch.setattr(archiving, "MOST_BYTES", 1)
    folder.claims.take(3, owner="again", base=0, number_try=1)
    before = contents(folder)
    Archiver(folder).archive_all()
    assert archived(folder) == each([f"{ticket:012d}-{ticket:012d}" for ticket in range(5)])
    assert contents(folder) == before


@pytest.mark.usefixtures("four_a_file")
def test_an_archive_can_be_asked_in_sql_where_it_lies(tmp_path: Path):
    duckdb = pytest.importorskip("duckdb")
    folder = floored(a_run(str(tmp_path / "run"), tickets=8), 8, 8)
    archive_until_done(folder)
    rows = f"SELECT unnest(rows) AS row FROM '{tmp_path}/run/archive/groups/*.parquet'"
    sql = f"SELECT count(*), sum(len(row.turns[1].output_ids)) FROM ({rows})"
    assert duckdb.sql(sql).fetchall() == [(16, 16)]


@pytest.mark.usefixtures("four_a_file")
def test_what_a_killed_writer_left_beside_the_archive_is_not_read_by_who_starts_later(open_store):
    folder = RunFolder(open_store())
    folder.write_base(Base(attempt=0))
    for ticket in range(4):
        fill(folder, ticket)
    before = contents(folder)
    archive_until_done(floored(folder, 4, 4))
    left = {name: getattr(folder, name).shards for name in ("groups", "scored", "claims")}
    for queue in left.values():
        name = queue.archive.names(3)[0]
        assert folder.filesystem.put(queue.key(name), a_slot(3, version=9))
    assert contents(RunFolder(open_store())) == before
    assert bytes(RunFolder(open_store()).groups.demand(3)) == before["groups"][3]
    assert RunFolder(open_store()).claims.base_of(3) == 0


@pytest.mark.usefixtures("four_a_file")
def test_a_ticket_that_came_late_hides_none_that_was_archived_before_it(open_store):
    folder = RunFolder(open_store())
    folder.write_base(Base(attempt=0))
    for ticket in (0, 1, 3, 4):
        fill(folder, ticket)
    Archiver(folder).archive_all()
    late = RunFolder(open_store())
    fill(late, 2)
    reader = RunFolder(open_store())
    assert reader.scored.numbers(2) == reader.groups.numbers(2) == reader.claims.tickets(2) == [2, 3, 4]
