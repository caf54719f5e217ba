"""Plots as SVG: round ticks, points where they belong, and never more of them than a page has room for."""

from __future__ import annotations

import base64
from xml.etree import ElementTree

import pytest

from flows.drawing import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, Curve, image, svg, thinned, ticks


def curve(steps: list[int], values: list[float]) -> Curve:
    return Curve(title="Reward <mean>", unit="a & b", steps=steps, values=values)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.31, 0.97, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (-3.0, 14.0, [-5.0, 0.0, 5.0, 10.0, 15.0]),
        (5.0, 5.0, [5.0, 6.0]),
        (0.0, 0.0, [0.0, 0.2]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 60, [20.0, 40.0, 60.0]), (1, 3, [1.0, 2.0, 3.0]), (7, 7, [7.0])],
)
def test_steps_have_whole_ticks_within_them(first: int, last: int, expected: list[float]) -> None:
    assert ticks(first, last, whole=True) == expected


def test_a_line_runs_from_its_first_step_to_its_last() -> None:
    plot = ElementTree.fromstring(svg(curve([1, 2, 3], [0.0, 1.0, 0.5])))
    line = plot.find("{*}polyline")
    assert line is not None
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert line.get("points") == (
        f"{LEFT:.1f},{HEIGHT - BOTTOM:.1f} {middle:.1f},{TOP:.1f} {WIDTH - RIGHT:.1f},{(TOP + HEIGHT - BOTTOM) / 2:.1f}"
    )
    texts = [text.text for text in plot.iterfind("{*}text")]
    assert texts == ["Reward <mean>, a & b", "0", "0.2", "0.4", "0.6", "0.8", "1", "1", "2", "3", "step"]


def test_one_step_is_a_dot() -> None:
    plot = ElementTree.fromstring(svg(curve([4], [0.5])))
    assert len(plot.findall("{*}circle")) == 1


def test_many_steps_are_thinned_to_means_of_stretches() -> None:
    steps = list(range(1, 2 * MOST_POINTS + 2))
    shown, values = thinned(curve(steps, [float(step) for step in steps]))
    # Three to a stretch: two would give one point too many.
    assert (len(shown), shown[0], values[0], shown[-1]) == (161, 3, 2.0, 481)


def test_an_image_is_an_address_that_holds_the_plot() -> None:
    some = curve([1, 2], [0.0, 1.0])
    head, _, data = image(some).partition(",")
    assert (head, base64.b64decode(data).decode()) == ("data:image/svg+xml;base64", svg(some))
