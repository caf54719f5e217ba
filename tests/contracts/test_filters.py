"""What holds for every filter of groups."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from agrpo.errors import ConfigError
from agrpo.filters import Filter, filters
from agrpo.records.score import Score
from agrpo.stages.scorer import scored_group
from tests.stages.groups import a_group

SETTINGS: dict[str, dict[str, Any]] = {"pass_rate": {"low": 0.2, "high": 0.8}, "overlong": {"max_share": 0.5}}
FILTERS = pytest.mark.parametrize("name", filters.names())


def a_filter(name: str) -> Filter:
    return filters.build(name, SETTINGS.get(name, {}))


@FILTERS
def test_it_says_yes_or_no_of_any_group_and_the_same_when_it_is_asked_again(name: str) -> None:
    part = a_filter(name)
    for lengths in ((4, 4), (4, 0), (0, 0), (1,)):
        values: list[float | None] = [float(place) for place, _ in enumerate(lengths)]
        score = Score(reward="f", weight=1.0, values=values, errors=[None] * len(lengths))
        group = scored_group(a_group(0, lengths=lengths), [score], 64)
        first = part(group)
        assert isinstance(first, bool)
        assert part(group) is first and a_filter(name)(group) is first


@FILTERS
def test_it_keeps_nothing(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        a_filter(name).seen = 1  # type: ignore[attr-defined]


@FILTERS
def test_unknown_settings_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        filters.build(name, {**SETTINGS.get(name, {}), "no_such_knob": 1})
