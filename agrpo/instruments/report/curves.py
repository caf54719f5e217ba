"""What changes over a run: measures, bands and counts over windows of steps, so few that any run makes a small page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agrpo.instruments.report.asking import ask, ask_one

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_POINTS = 600
"""Of a curve: more than a screen tells apart, and little enough for dozens of curves in a page."""

PARTS = ("wait", "read", "plan", "forward", "backward", "optimizer", "digest", "record", "sync", "checkpoint", "other")
"""The order in which parts of a step are shown. Which there are, and how long they took, says the view step_times."""

_AXIS = """
    SELECT
        (step - 1) // ? AS number, max(step) AS step, count(*) AS num_steps, arg_max(num_tokens, step) AS num_tokens,
        (epoch(max(finished_at)) - (SELECT min(epoch(started_at)) FROM attempts)) / 60 AS minutes
    FROM live_steps GROUP BY 1 ORDER BY 1
"""

_MEASURES = "SELECT window_index AS number, name, value FROM window_metrics(?) WHERE isfinite(value)"

_GROUP_REWARDS = """
    SELECT (step - 1) // ? AS number, avg(reward) AS value
    FROM live_step_groups JOIN live_steps USING (attempt, step) JOIN scores USING (ticket)
    WHERE isfinite(reward)
    GROUP BY 1, step, ticket
"""

_LENGTHS = """
    SELECT (step - 1) // ? AS number, num_completion_tokens AS value
    FROM live_step_groups JOIN live_steps USING (attempt, step) JOIN rollouts USING (ticket)
    WHERE num_prompt_tokens > 0
"""

_PART_MEANS = "SELECT (step - 1) // ? AS number, part AS name, avg(seconds) AS value FROM step_times GROUP BY 1, 2"

_PART_TOTALS = "SELECT part, sum(seconds) AS seconds FROM step_times GROUP BY part"

_DROPS = """
    SELECT
        (step - 1) // ? AS number,
        coalesce(drop_reason || ' by ' || left_out_by, drop_reason, 'no reason given') AS name,
        count(*) AS value
    FROM live_step_groups JOIN live_steps USING (attempt, step)
    WHERE NOT trained
    GROUP BY 1, 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One point of every curve: some consecutive steps, one in a run that is short enough."""

    step: int
    """The last of them."""
    num_steps: int
    num_tokens: int
    """Forwarded from the start of the run to the end of that step."""
    minutes: float
    """From the start of the first learner to the end of that step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """The windows of a run."""

    window_steps: int
    """Steps per window."""
    windows: tuple[Window, ...]
    places: Mapping[int, int]
    """Place in `windows` of window number `(step - 1) // window_steps`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Quantiles and mean of what the groups consumed by a window's steps hold, trained and dropped."""

    low: tuple[float | None, ...]
    """The 10% quantile."""
    middle: tuple[float | None, ...]
    high: tuple[float | None, ...]
    """The 90% quantile."""
    mean: tuple[float | None, ...]


def read_axis(connection: DuckDBPyConnection, most_points: int = MOST_POINTS) -> Axis:
    """Windows of as few steps as keep their number at `most_points`."""
    newest = ask_one(connection, "SELECT coalesce(max(step), 0) AS step FROM live_steps")["step"]
    window_steps = max(1, -(-newest // most_points))
    rows = ask(connection, _AXIS, [window_steps])
    places = {row.pop("number"): place for place, row in enumerate(rows)}
    return Axis(window_steps=window_steps, windows=tuple(Window(**row) for row in rows), places=places)


def read_measures(connection: DuckDBPyConnection, axis: Axis) -> dict[str, tuple[float | None, ...]]:
    """The documented measures, by name, each added up over a window as docs/metrics.md says."""
    return _by_name(connection, axis, _MEASURES)


def read_reward_band(connection: DuckDBPyConnection, axis: Axis) -> Band:
    """Over the mean rewards of groups: many rewards are right or wrong, and quantiles over rollouts would be 0 or 1."""
    return _band(connection, axis, _GROUP_REWARDS)


def read_length_band(connection: DuckDBPyConnection, axis: Axis) -> Band:
    """Of the completions' tokens, over rollouts that the engine answered."""
    return _band(connection, axis, _LENGTHS)


def read_step_parts(connection: DuckDBPyConnection, axis: Axis) -> dict[str, tuple[float | None, ...]]:
    """Mean seconds per step of every part that took any time."""
    found = _by_name(connection, axis, _PART_MEANS)
    return {part: found[part] for part in sorted(found, key=_part_place) if any(found[part])}


def read_part_totals(connection: DuckDBPyConnection) -> dict[str, float]:
    """Seconds that all steps together spent on each part, for every part that took any."""
    found = {row["part"]: row["seconds"] for row in ask(connection, _PART_TOTALS)}
    return {part: found[part] for part in sorted(found, key=_part_place) if found[part]}


def read_drops(connection: DuckDBPyConnection, axis: Axis) -> dict[str, tuple[float | None, ...]]:
    """Dropped groups per step, by reason; 0 where a window dropped none for it."""
    found = _by_name(connection, axis, _DROPS)
    return {
        name: tuple((value or 0) / window.num_steps for value, window in zip(values, axis.windows, strict=True))
        for name, values in found.items()
    }


def _part_place(part: str) -> tuple[int, str]:
    return (PARTS.index(part) if part in PARTS else len(PARTS), part)


def _by_name(connection: DuckDBPyConnection, axis: Axis, sql: str) -> dict[str, tuple[float | None, ...]]:
    """Values of rows (number, name, value), one per window and name, by name in alphabetical order."""
    found: dict[str, list[float | None]] = {}
    for row in ask(connection, sql, [axis.window_steps]):
        place = axis.places.get(row["number"])
        if place is not None:
            found.setdefault(row["name"], [None] * len(axis.windows))[place] = row["value"]
    return {name: tuple(found[name]) for name in sorted(found)}


def _band(connection: DuckDBPyConnection, axis: Axis, sql: str) -> Band:
    quantiles = f"""
        SELECT number, quantile_cont(value, [0.1, 0.5, 0.9]) AS quantiles, avg(value) AS mean
        FROM ({sql}) GROUP BY number
    """
    rows = {axis.places.get(row["number"]): row for row in ask(connection, quantiles, [axis.window_steps])}
    found = [rows.get(place) for place in range(len(axis.windows))]

    def quantile(place: int) -> tuple[float | None, ...]:
        return tuple(None if row is None else row["quantiles"][place] for row in found)

    mean = tuple(None if row is None else row["mean"] for row in found)
    return Band(low=quantile(0), middle=quantile(1), high=quantile(2), mean=mean)
