"""The protocol model: no state within the bounds violates anything, and no rule can be spared."""

from __future__ import annotations

import pytest

from tests.protocol.configurations import CAPPED, COMPLETE, NEEDED, QUICK
from tests.protocol.rules import RULES
from tests.protocol.search import search

MOST_STATES = 10_000


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_violated_in_any_state(name: str):
    explored = search(QUICK[name])
    print(name, explored)
    assert explored.violation is None
    assert explored.complete


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLETE)
def test_nothing_is_violated_in_any_state_of_wider_bounds(name: str):
    explored = search(COMPLETE[name])
    print(name, explored)
    assert explored.violation is None
    assert explored.complete


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPPED)
def test_nothing_is_violated_in_the_first_states_of_wide_bounds(name: str):
    explored = search(CAPPED[name], most_states=MOST_STATES)
    print(name, explored)
    assert explored.violation is None
    assert explored.states > MOST_STATES


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.slow] * needed.slow) for rule, needed in NEEDED.items()]
)
def test_without_a_rule_the_model_finds_what_it_is_for(rule: str):
    explored = search(NEEDED[rule].bounds, without=rule)
    print(rule, explored)
    assert explored.violation == NEEDED[rule].violation


def test_every_rule_is_shown_to_be_needed():
    assert set(NEEDED) == set(RULES)
