"""Hints and beats, which decide nothing: a damaged one is passed over, and told once."""

from __future__ import annotations

import pytest

from agrpo.errors import RecordTooNew
from agrpo.queue.run_folder import RunFolder
from agrpo.records.documents import dump
from agrpo.records.progress import Hint
from tests.queue.archived_run import a_run

HINT = "hint/run_ahead.json"
DAMAGED = [b"", b'{"a', b"{}", b"[]", b"7", b"\xff", b'{"stage": "learner", "at": "noon"}']


def put(folder: RunFolder, key: str, data: bytes) -> None:
    folder.filesystem.put(key, data, exclusive=False)


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_hint_is_as_none_and_told_once(data: bytes, caplog: pytest.LogCaptureFixture):
    folder = a_run()
    put(folder, HINT, data)
    assert [folder.hint() for _ in range(3)] == [None] * 3
    assert [record.getMessage().endswith("its stage writes it anew") for record in caplog.records] == [True]
    folder.write_hint(Hint(limit_ticket=None, dropped=0, floor=7))
    assert folder.hint().floor == 7


def test_any_flipped_byte_of_a_hint_leaves_it_or_makes_it_none():
    folder, hint = a_run(), Hint(limit_ticket=12, dropped=3, floor=7, finished=True)
    whole = dump(hint)
    for place in range(len(whole)):
        put(folder, HINT, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert folder.hint() in (None, hint)


def test_a_hint_of_a_later_agrpo_is_refused():
    folder = a_run()
    put(folder, HINT, b'{"schema": "Hint", "schema_version": "2.0"}')
    with pytest.raises(RecordTooNew, match=r"hint/run_ahead\.json is a Hint document of schema version 2\.0"):
        folder.hint()


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_beat_silences_its_stage_alone(data: bytes, caplog: pytest.LogCaptureFixture):
    folder = a_run()
    folder.beat("scorer", "a finished group", 1.5)
    put(folder, "beat/learner.json", data)
    assert [[beat["stage"] for beat in folder.beats()] for _ in range(3)] == [["scorer"]] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder.url}/beat/learner.json is damaged. It is passed over, since it decides nothing: its stage writes it anew"
    ]
    folder.beat("learner", None)
    assert sorted(beat["stage"] for beat in folder.beats()) == ["learner", "scorer"]


def test_servers_that_are_forgotten_are_nowhere_until_they_say_so_again():
    folder = a_run()
    for number, name in enumerate(("server", "server-2", "server-3")):
        folder.write_server(name, f"http://127.0.0.1:{number}")
    folder.forget_servers(["server-2"])
    assert sorted(folder.server_urls()) == ["http://127.0.0.1:0", "http://127.0.0.1:2"]
    folder.forget_servers()
    assert folder.server_urls() == []
    folder.write_server("server", "http://127.0.0.1:7")
    assert folder.server_urls() == ["http://127.0.0.1:7"]


@pytest.mark.parametrize("data", [*DAMAGED, b'{"url": 7}'])
def test_a_damaged_word_on_where_a_server_is_hides_that_server_alone(data: bytes):
    folder = a_run()
    folder.write_server("server", "http://127.0.0.1:1")
    put(folder, "servers/server-2.json", data)
    assert folder.server_urls() == ["http://127.0.0.1:1"]
