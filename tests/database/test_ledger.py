from __future__ import annotations

import pytest

from agrpo.database.ledger import Entry, Ledger


def test_the_floor_is_the_first_missing_number():
    ledger = Ledger([Entry("groups", 0), Entry("groups", 2), Entry("groups", 1), Entry("groups", 5)])
    assert ledger.floor("groups") == 3
    assert ledger.floor("scored") == 0
    assert len(ledger) == 4


def test_missing_entries_are_those_not_added():
    ledger = Ledger([Entry("groups", 0), Entry("groups", 3)])
    assert ledger.missing("groups", [0, 1, 3, 4]) == [Entry("groups", 1), Entry("groups", 4)]
    assert ledger.missing("scored", [0]) == [Entry("scored", 0)]


def test_streams_do_not_mix():
    ledger = Ledger([Entry("plans/0", 1)])
    assert Entry("plans/0", 1) in ledger
    assert Entry("plans/1", 1) not in ledger


def test_an_entry_is_never_added_twice():
    ledger = Ledger([Entry("groups", 0)])
    with pytest.raises(AssertionError, match="groups 0 is recorded twice"):
        ledger.add(Entry("groups", 0))
