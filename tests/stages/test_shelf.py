"""The shelf of scored groups."""

from __future__ import annotations

from agrpo.queue.run_folder import RunFolder
from agrpo.stages.shelf import ConsumedTickets, Shelf
from tests.stages.groups import a_group, publish


def test_a_group_stands_on_the_shelf_until_a_plan_holds_it(folder: RunFolder):
    consumed = ConsumedTickets()
    shelf = Shelf(folder, consumed)
    for ticket in (2, 0):
        publish(folder, a_group(ticket), (0.0, 1.0))
    assert list(shelf.look()) == [0, 2]
    publish(folder, a_group(1), (0.0, 1.0))
    assert list(shelf.waiting) == [0, 2]
    consumed.add(0)
    assert list(shelf.look()) == [1, 2]
    assert shelf.num_samples() == 4


def test_a_group_is_read_once_and_counted_with_its_tokens(folder: RunFolder):
    shelf = Shelf(folder, ConsumedTickets())
    publish(folder, a_group(0, lengths=(3, 4)), (0.0, 1.0))
    first = shelf.look()[0]
    assert shelf.look()[0] is first
    assert (shelf.num_seen, shelf.tokens_seen) == (1, 3 + 3 + 3 + 4)


def test_rollouts_without_a_trained_token_are_no_samples(folder: RunFolder):
    shelf = Shelf(folder, ConsumedTickets())
    publish(folder, a_group(0, lengths=(3, 0)), (1.0, None))
    shelf.look()
    assert shelf.num_samples() == 1
