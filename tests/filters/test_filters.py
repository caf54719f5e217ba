"""Filters by hand-made groups: what each leaves out, and what cannot be a filter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agrpo.config import FilterSection
from agrpo.errors import ConfigError, FilterError
from agrpo.filters import check_filter, filters, left_out_by, load_filter, load_filters
from agrpo.records.score import Mark, Score, ScoredGroup
from agrpo.stages.scorer import scored_group
from tests.stages.groups import a_group, cut

OWN = "tests.filters.own"


def a_filter(name: str, **settings: Any) -> FilterSection:
    return FilterSection(name=name, settings=settings)


def judged(*columns: list[float | None], lengths: tuple[int, ...] | None = None) -> ScoredGroup:
    """A group by what its rewards, of weight 1, said; rollouts of different tokens."""
    scores = [
        Score(reward=f"f{place}", weight=1.0, values=values, errors=[None] * len(values))
        for place, values in enumerate(columns)
    ]
    return scored_group(a_group(0, lengths=lengths or (4,) * len(columns[0])), scores, 64)


@pytest.mark.parametrize(
    ("rewards", "let_through"),
    [
        ([1.0, 0.0, 0.0, 0.0], True),
        ([1.0, 1.0, 1.0, 0.0], True),
        ([1.0, 1.0, 1.0, 1.0], False),
        ([0.9, 0.0, 0.0, 0.0], False),
        ([1.0, None, None, None], False),
        ([None, None, None, None], True),
    ],
)
def test_a_pass_rate_lies_in_its_band_its_ends_included(rewards: list[float | None], let_through: bool) -> None:
    assert filters.build("pass_rate", {"low": 0.25, "high": 0.75})(judged(rewards)) is let_through


def test_a_pass_rate_looks_at_the_reward_that_it_names_before_its_weight() -> None:
    group = judged([1.0, 1.0, 1.0, 1.0], [-0.5, 0.0, -0.5, -0.5])
    assert filters.build("pass_rate", {"low": 0.1, "high": 0.9})(group)
    assert not filters.build("pass_rate", {"low": 0.1, "high": 0.9, "reward": "f0"})(group)
    lenient = {"low": 0.1, "high": 0.9, "reward": "f1", "threshold": 0.0}
    assert filters.build("pass_rate", lenient)(group)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"low": 0.6, "high": 0.5}, "high = 0.5: low = 0.6 is above it, and no group would ever be trained"),
        ({"low": 0.0, "high": 1.0}, "high = 1.0: with low = 0 it leaves nothing out"),
        ({"high": 0.5}, "low: missing"),
        ({"low": -0.1, "high": 0.5}, "low = -0.1"),
    ],
)
def test_a_band_that_means_nothing_is_refused(settings: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        filters.build("pass_rate", settings)


@pytest.mark.parametrize(("num_cut", "let_through"), [(0, True), (2, True), (3, False), (4, False)])
def test_a_group_of_which_too_much_was_cut_is_overlong(num_cut: int, let_through: bool) -> None:
    group = cut(a_group(0, lengths=(4,) * 4), *range(num_cut))
    scored = scored_group(group, [], 64)
    assert scored.truncated == [index < num_cut for index in range(4)]
    assert filters.build("overlong", {"max_share": 0.5})(scored) is let_through


def test_rollouts_that_the_engine_lost_are_no_part_of_the_share() -> None:
    group = cut(a_group(0, lengths=(4, 4, 0, 0)), 0, 1)
    assert not filters.build("overlong", {"max_share": 0.5})(scored_group(group, [], 64))
    assert filters.build("overlong", {"max_share": 0.5})(scored_group(a_group(0, lengths=(0, 0)), [], 64))


def test_a_group_of_one_and_the_same_completion_is_left_out() -> None:
    group = a_group(0, lengths=(4, 4, 0))
    same = replace(
        group,
        rollouts=[
            group.rollouts[0],
            replace(group.rollouts[1], completion_ids=group.rollouts[0].completion_ids),
            group.rollouts[2],
        ],
    )
    part = filters.build("duplicates", {})
    assert not part(scored_group(same, [], 64))
    assert part(scored_group(group, [], 64))
    assert not filters.build("duplicates", {"min_distinct": 3})(scored_group(group, [], 64))


def test_the_first_filter_that_says_no_is_named() -> None:
    loaded = load_filters([a_filter("overlong", max_share=0.0), a_filter("pass_rate", low=0.1, high=0.9)])
    assert left_out_by(loaded, judged([1.0, 0.0])) is None
    assert left_out_by(loaded, judged([1.0, 1.0])) == "pass_rate"
    scored = scored_group(cut(a_group(0), 0), [], 64)
    assert left_out_by(loaded, scored) == "overlong"


def test_a_class_of_the_users_is_a_filter_with_its_settings() -> None:
    assert [load_filter(a_filter(f"{OWN}:EvenTickets"))(scored_group(a_group(n), [], 64)) for n in (0, 1)] == [
        True,
        False,
    ]
    assert check_filter(a_filter(f"{OWN}:EvenTickets", every=3)) == []
    (told,) = check_filter(a_filter(f"{OWN}:EvenTickets", evry=3))
    assert told.endswith('evry: unknown setting; did you mean "every"?')


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"{OWN}:Remembers", "is a plain class, which may remember"),
        (f"{OWN}:EvenTicket", 'has no class "EvenTicket"; did you mean "EvenTickets"?'),
        (f"{OWN}:AsksForMore", r"expected def __call__\(self, group: ScoredGroup\) -> bool"),
        ("no_such_module:Filter", 'there is no module "no_such_module"'),
    ],
)
def test_what_is_no_filter_is_refused_before_a_run_begins(name: str, told: str) -> None:
    with pytest.raises(FilterError, match=told):
        load_filter(a_filter(name))
    assert len(check_filter(a_filter(name))) == 1


def test_a_filter_that_fails_or_does_not_answer_ends_with_its_name() -> None:
    with pytest.raises(FilterError, match=r"Fails\" failed on ticket 0: KeyError: 'level'. Mend it"):
        left_out_by(load_filters([a_filter(f"{OWN}:Fails")]), judged([1.0, 0.0]))
    with pytest.raises(FilterError, match=r"Undecided\" gave None for ticket 0; expected True"):
        left_out_by(load_filters([a_filter(f"{OWN}:Undecided")]), judged([1.0, 0.0]))


def test_scores_say_which_filter_leaves_a_group_out_beside_their_other_marks() -> None:
    loaded = load_filters([a_filter("pass_rate", low=0.1, high=0.9)])
    score = Score(reward="f", weight=1.0, values=[1.0, 1.0], errors=[None, None])
    scored = scored_group(a_group(0), [score], 64, filters=loaded)
    assert (scored.left_out_by, scored.marks) == ("pass_rate", {Mark.LEFT_OUT, Mark.EQUAL_REWARDS})
    lost = scored_group(a_group(0, lengths=(0, 0)), [], 64, filters=load_filters([a_filter(f"{OWN}:Fails")]))
    assert (lost.left_out_by, lost.marks) == (None, {Mark.FAILED})  # nothing to ask a filter about
