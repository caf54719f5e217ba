"""What a quickstart run changed, drawn: the reward over the steps, and the pass rate by the length of the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from agrpo.quickstart.evaluate import PassRate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8A8A8A"
WIDTH_PIXELS, HEIGHT_PIXELS, DOTS_PER_INCH = 1000, 600, 100
TITLE_POINTS, LABEL_POINTS = 16, 13
SMOOTHED_STEPS = 5


def plot_rewards(rewards: Sequence[float], file: Path, *, title: str) -> None:
    """Draw the mean reward of each step, from step 1, as a PNG."""
    figure, axes = _axes(title)
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, "o", color=GREY, markersize=4, label="each step")
    axes.plot(steps, smoothed(rewards), color=BLUE, linewidth=2.5, label=f"mean of the last {SMOOTHED_STEPS} steps")
    axes.set_xlabel("optimizer step", fontsize=LABEL_POINTS)
    axes.set_ylabel("mean reward (0 to 1)", fontsize=LABEL_POINTS)
    _save(figure, axes, file, legend="lower right")


def plot_pass_rates(
    before: Mapping[int, PassRate], after: Mapping[int, PassRate], file: Path, *, trained: range, title: str
) -> None:
    """Draw the greedy pass rate by list length before and after a run, with the `trained` lengths shaded, as a PNG."""
    figure, axes = _axes(title)
    axes.axvspan(trained.start - 0.5, trained.stop - 0.5, color=GREY, alpha=0.15, label="lengths of the run")
    for label, rates, style, colour in (("before", before, "s--", ORANGE), ("after", after, "o-", BLUE)):
        lengths = sorted(rates)
        axes.plot(
            lengths, [rates[length].greedy for length in lengths], style, color=colour, linewidth=2.5, label=label
        )
    axes.set_xticks(sorted({*before, *after}))
    axes.set_xlabel("list length (numbers)", fontsize=LABEL_POINTS)
    axes.set_ylabel("share of held-out lists sorted (greedy, 0 to 1)", fontsize=LABEL_POINTS)
    _save(figure, axes, file, legend="upper right")


def smoothed(values: Sequence[float]) -> list[float]:
    """Each value as the mean of itself and up to four before it."""
    return [fmean(values[max(0, end - SMOOTHED_STEPS) : end]) for end in range(1, len(values) + 1)]


def _axes(title: str) -> tuple[Figure, Axes]:
    # Not pyplot: it would keep every figure alive and look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PIXELS / DOTS_PER_INCH, HEIGHT_PIXELS / DOTS_PER_INCH), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=TITLE_POINTS)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Figure, axes: Axes, file: Path, *, legend: Literal["lower right", "upper right"]) -> None:
    axes.tick_params(labelsize=LABEL_POINTS)
    axes.legend(loc=legend, fontsize=LABEL_POINTS)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DOTS_PER_INCH)
