"""Numbers in words."""

from __future__ import annotations

from agrpo.instruments.wording import count, duration, number, percent


def test_durations_are_rounded_as_one_would_say_them():
    seconds = (0.0, 0.4, 4.0, 4.12, 9.97, 89.0, 95.0, 5000.0, 11_100.0)
    told = ["0 s", "0.4 s", "4 s", "4.1 s", "10 s", "89 s", "2 min", "83 min", "3 h 05 min"]
    assert [duration(each) for each in seconds] == told


def test_numbers_have_three_digits_and_their_thousands_apart():
    assert [number(value) for value in (0.0, 0.0123, 52.37, 3456.7, 4.0)] == ["0", "0.0123", "52.4", "3,457", "4"]
    assert [count(each, "group") for each in (0, 1, 1638)] == ["0 groups", "1 group", "1,638 groups"]
    assert percent(0.125) == "12 %"
