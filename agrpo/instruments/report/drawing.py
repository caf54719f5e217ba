"""Drawings: lines, stacks and bars as Bokeh models, in one look, with the legend left to the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from agrpo.instruments.report.curves import Band, Window

if TYPE_CHECKING:
    from bokeh.plotting import figure

# Okabe and Ito's palette, which colour-blind readers can tell apart, those with the most contrast on white first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442", "#8A8A8A")
DASHES = ("solid", "dashed", "dotted", "dashdot", "dotdash")
INK, GRID = "#1f2328", "#e4e7eb"
HEIGHT_PIXELS = 270
FEW_POINTS = 60
"""Up to which each point is marked, so that a curve of one is seen."""
LEAST_SHARE = 0.05
"""Top of an axis of shares that are all smaller, so that a share of 0.4 % looks as small as it is."""

Values = Sequence[float | None]
Bars = Mapping[str, float | None]
"""Heights by label; a label is a number, or a range that begins with one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve over the windows of a run."""

    label: str
    windows: Sequence[Window]
    values: Values
    run: int
    """Place of the run in the report."""
    style: int
    """Which colour and which dashes."""
    band: Band | None = None
    """Shaded from its low to its high."""
    faint: bool = False
    """Drawn thin and pale, behind a smoothed one."""

    @property
    def colour(self) -> str:
        return COLOURS[self.style % len(COLOURS)]

    @property
    def dash(self) -> str:
        return DASHES[self.style % len(DASHES)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendEntry:
    """A line of the legend. Pressing it shows or hides what carries its tag."""

    label: str
    colour: str
    kind: str
    """`solid`, `dashed`, …, or `filled`."""
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """One chart: what Bokeh draws, and what a reader who does not see it is told."""

    key: str
    """Of its place in the page."""
    title: str
    caption: str
    """With the key number."""
    legend: tuple[LegendEntry, ...] = ()
    item: Mapping[str, Any] = field(repr=False)
    """Bokeh's JSON, which names its place by `key`."""


def draw_lines(
    key: str, title: str, unit: str, caption: str, lines: Sequence[Line], *, log: bool = False, share: bool = False
) -> Drawing:
    """Curves over steps, tokens or minutes, as the page's reader chooses."""
    values = [value for line in lines for value in line.values if value is not None]
    most = LEAST_SHARE if share and max(values, default=0) <= LEAST_SHARE else None
    plot = _figure(unit, log=log, share=share, least=0.0 if share else None, most=most)
    plot.xaxis.axis_label = "optimizer step"
    for run, mine in groupby(lines, key=lambda line: line.run):
        _draw_run(plot, run, list(mine))
    return _drawing(key, title, caption, plot, _legend(lines))


def draw_stack(key: str, title: str, unit: str, caption: str, lines: Sequence[Line]) -> Drawing:
    """Amounts of one run on top of one another, the first at the bottom."""
    plot = _figure(unit)
    plot.xaxis.axis_label = "optimizer step"
    source = _source(lines)
    below = np.zeros(len(lines[0].windows))
    for place, line in enumerate(lines):
        source.data[f"below{place}"] = below
        below = below + np.nan_to_num(_array(line.values))
        source.data[f"above{place}"] = below
        area = plot.varea("x", f"below{place}", f"above{place}", source=source, color=line.colour)
        border = plot.line("x", f"above{place}", source=source, color="white", line_width=1.2)
        area.tags = border.tags = [f"line{place}"]
    source.data["total"] = below
    edge = plot.line("x", "total", source=source, color=INK, line_width=0.8)
    _hover(plot, edge, lines, {"total": "total"})
    entries = [
        LegendEntry(label=line.label, colour=line.colour, kind="filled", tag=f"line{place}")
        for place, line in enumerate(lines)
    ]
    return _drawing(key, title, caption, plot, tuple(reversed(entries)))


def draw_bars(
    key: str, title: str, units: tuple[str, str], caption: str, bars: Sequence[Bars], *, share: bool = False
) -> Drawing:
    """Upright bars by label, one set per run side by side. `units`: of the labels and of the values."""
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool

    plot = _figure(units[1], share=share, least=0.0)
    labels = list(dict.fromkeys(label for one in bars for label in one))
    labels.sort(key=lambda label: float(label.partition("–")[0]))
    width = 0.8 / len(bars)
    for run, values in enumerate(bars):
        places = np.arange(len(labels)) - 0.4 + width * (run + 0.5)
        heights = _array([values.get(label) for label in labels])
        source = ColumnDataSource({"place": places, "height": heights, "label": labels})
        shown = plot.vbar(x="place", top="height", width=width * 0.92, source=source, color=COLOURS[run % len(COLOURS)])
        shown.tags = [f"run{run}"]
        value = "@height{0.0 %}" if share else "@height{0.[0000]}"
        plot.add_tools(HoverTool(renderers=[shown], tooltips=[(units[0], "@label"), (units[1], value)]))
    every = -(-len(labels) // 12)
    plot.xaxis.ticker = FixedTicker(ticks=list(range(0, len(labels), every)))
    plot.xaxis.major_label_overrides = dict(enumerate(labels))
    plot.xaxis.axis_label = units[0]
    return _drawing(key, title, caption, plot, ())


def smoothed(values: Values, size: int) -> list[float | None]:
    """Each value as the mean of itself and of those present among the `size - 1` before it. None stays None."""
    found: list[float | None] = []
    for place, value in enumerate(values):
        recent = [one for one in values[max(0, place + 1 - size) : place + 1] if one is not None]
        found.append(None if value is None else sum(recent) / len(recent))
    return found


def _draw_run(plot: figure, run: int, lines: Sequence[Line]) -> None:
    source = _source(lines)
    shown: Any = None
    for place, line in enumerate(lines):
        tags = [f"run{run}", f"line{line.style}"]
        if line.band is not None:
            source.data["low"], source.data["high"] = _array(line.band.low), _array(line.band.high)
            shade = plot.varea("x", "low", "high", source=source, color=line.colour, fill_alpha=0.15)
            shade.tags = [f"run{run}", "band"]
        pen: dict[str, Any] = {"line_alpha": 0.45} if line.faint else {"line_width": 2.2, "line_dash": line.dash}
        shown = plot.line("x", f"y{place}", source=source, color=line.colour, **pen)
        shown.tags = tags
        if len(line.windows) <= FEW_POINTS:
            alpha = 0.5 if line.faint else 0.9
            marks = plot.scatter("x", f"y{place}", source=source, color=line.colour, size=4, alpha=alpha)
            marks.tags = tags
    _hover(plot, shown, lines, {})


def _figure(
    unit: str, *, log: bool = False, share: bool = False, least: float | None = None, most: float | None = None
) -> figure:
    """`least`, `most`: ends of the vertical axis; None: as the values are."""
    from bokeh.models import CustomJSTickFormatter, DataRange1d, LogTicker, NumeralTickFormatter
    from bokeh.plotting import figure

    heights = DataRange1d(range_padding=0.06, only_visible=True)
    if least is not None:
        heights.start = least
    if most is not None:
        heights.end = most
    plot = figure(
        height=HEIGHT_PIXELS, sizing_mode="stretch_width", y_axis_type="log" if log else "linear",
        x_range=DataRange1d(range_padding=0.02), y_range=heights,
        tools="box_zoom,xwheel_pan,reset,save", active_drag=None, active_scroll=None, toolbar_location="above",
        output_backend="canvas", min_border_left=8, min_border_right=8,
    )  # fmt: skip
    if log:
        plot.yaxis.ticker = LogTicker(mantissas=[1, 2, 5], desired_num_ticks=6)
        plot.yaxis.formatter = CustomJSTickFormatter(code="return Number(tick.toPrecision(6)).toString()")
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.yaxis.axis_label = unit
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[00]a")
    if share:
        plot.yaxis.formatter = NumeralTickFormatter(format="0.[0] %")
    for axis in plot.axis:
        axis.update(
            axis_label_text_font_style="normal", axis_label_text_color=INK, axis_label_text_font_size="12px",
            major_label_text_color=INK, major_label_text_font_size="12px", axis_line_color="#8c959f",
            major_tick_line_color="#8c959f", minor_tick_line_color=None,
        )  # fmt: skip
    for grid in plot.grid:
        grid.update(grid_line_color=GRID)
    return plot


def _source(lines: Sequence[Line]) -> Any:
    """The columns of one run. The page copies the chosen one of the three axes into `x`."""
    from bokeh.models import ColumnDataSource

    windows = lines[0].windows
    steps = np.array([window.step for window in windows], dtype=float)
    data: dict[str, Any] = {
        "x": steps,
        "step": steps,
        "tokens": np.array([window.num_tokens for window in windows], dtype=float),
        "minutes": np.array([window.minutes for window in windows], dtype=float),
    }
    return ColumnDataSource(data | {f"y{place}": _array(line.values) for place, line in enumerate(lines)})


def _hover(plot: figure, shown: Any, lines: Sequence[Line], more: Mapping[str, str]) -> None:
    from bokeh.models import HoverTool

    columns = {f"y{place}": line.label for place, line in enumerate(lines)} | dict(more)
    tooltips = [("step", "@step{0,0}"), ("tokens", "@tokens{0,0}"), ("minutes", "@minutes{0.00}")]
    tooltips += [(label, f"@{column}{{%.4g}}") for column, label in columns.items()]
    formatters: dict[str, Any] = {f"@{column}": "printf" for column in columns}
    plot.add_tools(HoverTool(renderers=[shown], mode="vline", tooltips=tooltips, formatters=formatters))


def _legend(lines: Sequence[Line]) -> tuple[LegendEntry, ...]:
    """Of one run's lines. Several runs have theirs in the page's head; a single bare line is named by the title."""
    if lines[0].run != lines[-1].run:
        return ()
    entries = [
        LegendEntry(
            label=line.label, colour=line.colour, kind="solid" if line.faint else line.dash, tag=f"line{line.style}"
        )
        for line in lines
    ]
    banded = [line for line in lines if line.band is not None]
    entries += [
        LegendEntry(label="middle 80 %", colour=f"{line.colour}26", kind="filled", tag="band") for line in banded
    ]
    return tuple(entries) if len(entries) > 1 else ()


def _drawing(key: str, title: str, caption: str, plot: figure, legend: tuple[LegendEntry, ...]) -> Drawing:
    from bokeh.core.types import ID
    from bokeh.embed import json_item

    plot.name = f"chart-{key}"
    return Drawing(key=plot.name, title=title, caption=caption, legend=legend, item=json_item(plot, ID(plot.name)))


def _array(values: Values) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float32)
