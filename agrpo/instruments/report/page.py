"""The page: facts and charts laid out as one HTML file that needs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from agrpo.instruments.report import wording
from agrpo.instruments.report.charts import Section, chart_sections
from agrpo.instruments.report.drawing import COLOURS, DASHES
from agrpo.instruments.report.facts import RewardFigures, RunFacts
from agrpo.instruments.report.settings import differences, given_settings

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKey:
    """How a run is told from the others in the page."""

    letter: str
    name: str
    colour: str
    dash: str
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One row of the table of figures."""

    title: str
    values: tuple[str, ...]
    """Of each run."""


def report_page(runs: Sequence[RunFacts]) -> str:
    """One run's report, or the comparison of several. All text of runs is escaped; nothing is fetched."""
    sections = chart_sections(runs)
    return _templates().get_template("page.html").render(
        runs=runs,
        keys=[_key(place, facts) for place, facts in enumerate(runs)],
        figures=_figures(runs),
        part_rows=_part_rows(runs),
        work_rows=_work_rows(runs),
        given=given_settings(runs[0].document),
        differences=differences([facts.document for facts in runs]),
        sections=sections,
        charts=_charts(sections),
        style=_text("style.css"),
        script=_text("page.js"),
        bokeh=_bokeh(),
        words=wording,
    )  # fmt: skip


def _templates() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _text(name: str) -> str:
    return files("agrpo.instruments.report").joinpath(name).read_text("utf-8")


def _bokeh() -> str:
    """Bokeh's own script, without the parts for widgets, tables and formulas."""
    from bokeh.resources import Resources

    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _charts(sections: Sequence[Section]) -> str:
    """All charts as JSON that can stand in a script: a `<` would be read as the beginning of a tag."""
    items: list[Mapping[str, Any]] = [drawing.item for section in sections for drawing in section.drawings]
    return json.dumps(items, separators=(",", ":")).replace("<", "\\u003c")


def _key(place: int, facts: RunFacts) -> RunKey:
    return RunKey(
        letter=wording.letter(place), name=facts.summary.name, colour=COLOURS[place % len(COLOURS)],
        dash=DASHES[place % len(DASHES)], tag=f"run{place}",
    )  # fmt: skip


def _figures(runs: Sequence[RunFacts]) -> list[Figure]:
    """The figures at the end of each run, side by side."""
    rows = [_figures_of(facts) for facts in runs]
    return [Figure(title=title, values=tuple(row[title] for row in rows)) for title in rows[0]]


def _figures_of(facts: RunFacts) -> dict[str, str]:
    summary, reward = facts.summary, facts.summary.reward
    planned = f" of {summary.max_steps:,}" if summary.max_steps is not None else ""
    return {
        "State": "finished" if summary.finished else "not finished when this page was made",
        "Steps": f"{summary.steps:,}{planned}",
        "Time of all steps": wording.duration(summary.step_seconds),
        "Reward, first step": wording.number(reward.first),
        "Reward, last step": wording.number(reward.last),
        "Reward, mean of the last tenth": wording.number(reward.late),
        "Reward, best step": _best(reward),
        "Groups": f"{summary.num_groups:,}",
        "Rollouts": f"{summary.num_rollouts:,}",
        "Tokens generated": f"{summary.generated_tokens:,}",
        "Tokens forwarded": f"{summary.forwarded_tokens:,}",
        "Tokens trained": f"{summary.trained_tokens:,}",
        "Forwarded per second of the steps": wording.amount(summary.tokens_per_second, "tokens/s"),
        "Learner starts": f"{summary.num_attempts:,}",
        "Begun": summary.created_at[:19].replace("T", " ") + " UTC" if summary.created_at else wording.NOTHING,
        "Last step done": wording.NOTHING if summary.ended_at is None else f"{wording.moment(summary.ended_at)} UTC",
    }


def _best(reward: RewardFigures) -> str:
    if reward.best is None:
        return wording.NOTHING
    return "all are equal" if reward.constant else f"{wording.number(reward.best)} at step {reward.best_step}"


def _work_rows(runs: Sequence[RunFacts]) -> list[Figure]:
    """Mean durations of what comes before the learner, side by side."""
    rows = {
        "a rollout": [facts.work.rollout_seconds for facts in runs],
        "a group's wait for the scorer": [facts.work.score_wait_seconds for facts in runs],
        "scoring a group": [facts.work.score_seconds for facts in runs],
    }
    return [
        Figure(title=title, values=tuple(wording.amount(value, "s") for value in values))
        for title, values in rows.items()
    ]


def _part_rows(runs: Sequence[RunFacts]) -> list[Figure]:
    """Seconds per step and share of the time of every part, side by side."""
    parts = dict.fromkeys(part for facts in runs for part in facts.part_totals)
    return [Figure(title=part, values=tuple(_part(facts, part) for facts in runs)) for part in parts]


def _part(facts: RunFacts, part: str) -> str:
    if not facts.part_totals:
        return wording.NOTHING
    seconds = facts.part_totals.get(part, 0.0)
    share = wording.percent(seconds / sum(facts.part_totals.values()))
    return f"{wording.number(seconds / facts.summary.steps)} s ({share})"
