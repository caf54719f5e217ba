"""What a reward returns, as values that may go into a sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from agrpo.errors import NoteRefused
from agrpo.records.score import Unjudged
from agrpo.rewards.sandbox.verdicts import CallFailed, reason_of, verdicts_of


@pytest.mark.spec("A-200", "G-188")
@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (0.5, 0.5),
        (2, 2.0),
        (True, 1.0),
        (False, 0.0),
        (None, None),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
    ],
)
def test_numbers_booleans_and_none_are_values(returned: object, value: float | None) -> None:
    (verdict,) = verdicts_of([returned], 1)
    assert (verdict.value, verdict.error) == (value, None)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (float("nan"), "it returned nan; expected a finite number or None"),
        (float("-inf"), "it returned -inf; expected a finite number or None"),
        (10**400, "it returned int too large for a float"),
        ("1.0", "it returned str; expected a number or None"),
        (1 + 2j, "it returned complex; expected a number or None"),
        (np.array([1.0, 2.0]), "it returned ndarray; expected a number or None"),
        ([1.0], "it returned list; expected a number or None"),
    ],
)
def test_anything_else_is_no_value_and_says_why(returned: object, reason: str) -> None:
    good, bad = verdicts_of([1.0, returned], 2)
    assert (good.value, bad.value, bad.error) == (1.0, None, reason)


@pytest.mark.spec("A-200", "G-188")
@pytest.mark.parametrize(("returned", "what"), [(None, "NoneType"), ("11", "str"), ({"a": 1}, "dict"), (1.0, "float")])
def test_anything_but_a_list_fails_the_call(returned: object, what: str) -> None:
    with pytest.raises(CallFailed, match=f"it returned {what}; expected a list"):
        verdicts_of(returned, 2)


@pytest.mark.spec("A-200", "G-188")
@pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0], []])
def test_another_length_fails_the_call(returned: list[float]) -> None:
    with pytest.raises(CallFailed, match=f"it returned {len(returned)} values for 2 completions"):
        verdicts_of(returned, 2)


def test_an_array_and_a_generator_are_lists_too() -> None:
    assert [each.value for each in verdicts_of(np.array([1.0, 2.0]), 2)] == [1.0, 2.0]
    assert [each.value for each in verdicts_of((float(i) for i in range(2)), 2)] == [0.0, 1.0]


def test_a_reason_is_one_line_with_its_place() -> None:
    try:
        raise ValueError("first\nsecond " + "x" * 1000)
    except ValueError as error:
        reason = reason_of(error)
    assert reason.startswith("ValueError: first second xxx")
    assert "(test_verdicts.py:" in reason and len(reason) < 600


def test_half_a_surrogate_pair_in_a_reason_is_a_question_mark() -> None:
    assert reason_of(ValueError("a\ud800")) == "ValueError: a?"
    assert reason_of(NoteRefused("\ud800")) == "?"
    (verdict,) = verdicts_of([Unjudged("a\ud800")], 1)
    assert verdict.error == "a?"
