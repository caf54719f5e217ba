"""Staleness and run-ahead: exact bounds, worked by hand."""

from __future__ import annotations

import pytest

from agrpo.staleness import limit_ticket, may_generate, staleness


@pytest.mark.spec("A-067", "K11")
def test_lockstep_lets_exactly_one_generation_batch_run_per_version():
    allowed = [ticket for ticket in range(20) if may_generate(ticket, 0, 1, groups_per_version=4, max_staleness=0)]
    assert allowed == list(range(8))


@pytest.mark.spec("A-098")
def test_a_staleness_of_two_runs_two_more_versions_ahead():
    assert may_generate(11, 0, 0, groups_per_version=4, max_staleness=2)
    assert not may_generate(12, 0, 0, groups_per_version=4, max_staleness=2)


def test_a_group_that_was_replaced_lets_one_more_begin():
    assert not may_generate(4, 0, 0, groups_per_version=4, max_staleness=0)
    assert may_generate(4, 1, 0, groups_per_version=4, max_staleness=0)


@pytest.mark.spec("A-092")
def test_staleness_counts_weight_updates():
    assert staleness(5, 3) == 2


@pytest.mark.spec("A-099")
def test_groups_start_one_at_a_time_until_one_has_finished():
    assert limit_ticket(set(), 0, {}, None, allowance=1e9) == 1
    assert limit_ticket({0, 1}, 0, {}, None, allowance=1e9) == 3


@pytest.mark.spec("A-096", "A-098", "A-100")
def test_a_group_starts_only_while_held_tokens_are_below_the_allowance():
    # 0 and 1 are finished (30 + 50 tokens), later ones count the mean of 40: 30, 80, 120 are below 150, 160 is not.
    assert limit_ticket(set(), 0, {0: 30, 1: 50}, 40.0, allowance=150.0) == 4


@pytest.mark.spec("A-095")
def test_consumed_groups_hold_no_tokens():
    assert limit_ticket({1}, 1, {2: 100}, 100.0, allowance=150.0) == 4
