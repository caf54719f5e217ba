"""Line plots for Prefect's pages: small SVG images, which its markdown shows where they are written into the address.

Drawn by hand, since a plotting library would cost the supervisor a second and fifty megabytes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 42
BLUE = "#0072B2"
INK, PALE = "#333333", "#dddddd"
MOST_POINTS = 240
"""More would be narrower than a pixel on the page."""
NUM_TICKS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One measure over steps."""

    title: str
    unit: str
    steps: Sequence[int]
    """Ascending."""
    values: Sequence[float]


def image(curve: Curve) -> str:
    """A `data:` address that holds the plot."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(curve).encode()).decode()


def svg(curve: Curve) -> str:
    """The plot as an SVG document. Every step is a dot while there are few; a line joins them."""
    steps, values = thinned(curve)
    x_ticks, y_ticks = ticks(steps[0], steps[-1], whole=True), ticks(min(values), max(values))
    x_low, x_high = min(x_ticks[0], steps[0]), max(x_ticks[-1], steps[-1])
    xs = [_between(step, x_low, x_high, LEFT, WIDTH - RIGHT) for step in steps]
    ys = [_between(value, y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP) for value in values]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="14" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-weight="bold">{escape(curve.title)}, {escape(curve.unit)}</text>',
    ]
    for tick in y_ticks:
        y = _between(tick, y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{PALE}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x = _between(tick, x_low, x_high, LEFT, WIDTH - RIGHT)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="2"/>')
    if len(xs) <= NUM_TICKS * 4:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>' for x, y in zip(xs, ys, strict=True)]
    return "".join([*parts, "</svg>"])


def thinned(curve: Curve) -> tuple[list[int], list[float]]:
    """At most `MOST_POINTS` points: means over stretches of equally many steps, each at its last step."""
    stretch = math.ceil(len(curve.steps) / MOST_POINTS)
    starts = range(0, len(curve.steps), stretch)
    values = [curve.values[start : start + stretch] for start in starts]
    last = [curve.steps[min(start + stretch, len(curve.steps)) - 1] for start in starts]
    return last, [sum(some) / len(some) for some in values]


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, from at or below `low` to at or above `high`.

    `whole`: whole numbers within `low` and `high`, for steps.
    """
    span = high - low or (1.0 if whole else abs(high) or 1.0)
    rough = span / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    apart = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        apart = max(1.0, apart)
        first, last = math.ceil(low / apart), math.floor(high / apart)
    else:
        first, last = math.floor(low / apart + 1e-9), math.ceil(high / apart - 1e-9)
        last = max(last, first + 1)
    return [round(number * apart, 12) for number in range(first, last + 1)]


def _between(value: float, low: float, high: float, start: float, end: float) -> float:
    """Where `value` of `low` to `high` lies from `start` to `end`; in the middle where there is but one value."""
    return start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)
