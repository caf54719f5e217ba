"""Curves of characters."""

from __future__ import annotations

import math

from agrpo.instruments.live.curves import chart, columns_of


def test_a_chart_of_one_row_goes_from_the_smallest_block_to_the_whole_one():
    assert chart([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 1) == ["▁▂▃▄▅▆▇█"]


def test_a_chart_of_two_rows_has_sixteen_levels_and_its_top_row_first():
    assert chart([0.0, 7.0, 15.0], 2) == ["  █", "▁██"]
    assert chart([0.0, 8.0, 15.0], 2) == [" ▁█", "▁██"]


def test_values_that_are_all_equal_are_a_low_line():
    assert chart([3.0, 3.0], 1) == ["▁▁"]
    assert chart([3.0, 3.0], 2) == ["  ", "▁▁"]


def test_a_step_without_a_value_is_a_gap_and_the_others_stay_in_their_columns():
    assert chart([0.0, math.nan, 7.0], 1) == ["▁ █"]
    assert columns_of([1.0, math.nan, math.nan, math.nan], 2)[0] == 1.0
    assert math.isnan(columns_of([1.0, math.nan, math.nan, math.nan], 2)[1])


def test_a_terminal_without_blocks_gets_plain_characters():
    assert chart([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1, ascii_only=True) == [".:-=+*#"]


def test_more_values_than_columns_are_averaged_and_none_is_left_out():
    assert columns_of([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert columns_of([1.0, 2.0, 3.0], 2) == [1.0, 2.5]


def test_a_short_run_fills_the_width_once_it_is_done():
    assert columns_of([1.0, 2.0], 9, most_values=4) == [1.0, 1.0, 2.0, 2.0]
    assert columns_of([1.0, 2.0], 9) == [1.0, 2.0]
    assert columns_of([], 9) == []
