"""Which charts a report has, section by section: of one run every measure together, of several each measure over the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agrpo.instruments.report import captions, plots
from agrpo.instruments.report.curves import Band
from agrpo.instruments.report.drawing import Drawing, Line, Values, draw_bars, draw_lines, draw_stack, smoothed
from agrpo.instruments.report.facts import RunFacts
from agrpo.instruments.report.plots import Plot
from agrpo.instruments.report.wording import NOTHING, letter, percent
from agrpo.metrics.names import measure_named

SMOOTHED_SHARE = 20
"""The smoothed reward is the mean of this part of the run's points, five at least."""
MOST_BANDS = 2
"""Runs whose bands can be told apart when they overlap."""
FAINT_STYLE = 8
"""Of a single run's steps behind their mean: grey."""
MOST_NOTED = 12
"""Charts of what rewards noted."""
SMALL_SHARE = 0.01
"""Parts of a step below this share of its time are drawn as one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading, how to read what is under it, and its charts."""

    key: str
    title: str
    reading: str
    nothing: str
    """Said instead of charts where there are none."""
    drawings: tuple[Drawing, ...]
    notes: tuple[str, ...] = ()
    """What is to be known beside the charts, whether there are any or not."""


def chart_sections(runs: Sequence[RunFacts]) -> list[Section]:
    """All sections that are charts, in order."""
    return [*_learning(runs), *_pipeline(runs)]


def reward_section(runs: Sequence[RunFacts]) -> Section:
    """The first section: every step's reward, and its smoothed course."""
    return Section(
        key="reward", title="Reward",
        reading="Each step's mean reward over every group that it consumed, trained or dropped (faint), and the mean of the "
        "last few (firm)." + _shade(runs, "of the groups' means"),
        nothing="No step has a reward yet.", drawings=_reward(runs),
    )  # fmt: skip


def _learning(runs: Sequence[RunFacts]) -> list[Section]:
    return [
        reward_section(runs),
        Section(
            key="sources", title="Reward by source",
            reading="The mean of each reward function before its weight: a total can rise while one of its parts falls.",
            nothing=_only_source(runs), drawings=_sources(runs), notes=captions.of_failed_rewards(runs),
        ),
        *_noted(runs),
        Section(
            key="lengths", title="Completion length",
            reading="A rising share of cut completions says that the token limit, not the model, ends them."
            + _shade(runs, "of completions"),
            nothing="No completion was consumed yet.",
            drawings=(*_lengths(runs), *_plots(runs, plots.LENGTH_SHARES)),
        ),
        Section(
            key="entropy", title="Entropy and sameness",
            reading="Entropy near 0 with many equal groups means that the policy has settled: right if rewards are high, "
            "collapsed if they are not.",
            nothing="No token was trained yet.", drawings=_plots(runs, plots.ENTROPY, plots.SAMENESS),
        ),
        Section(
            key="ratio", title="Learner against sampler",
            reading="A ratio of 1 means that both give a token the same probability; off 1 at staleness 0 points to an "
            "engine that computes differently.",
            nothing="No token was trained yet.", drawings=_plots(runs, plots.RATIO, plots.LOGPROBS, plots.DIVERGENCE),
        ),
        Section(
            key="clipping", title="Clipping and masking",
            reading="Tokens whose ratio left the trust region give no gradient (clipped); those beyond the hard bounds are "
            "left out of the loss (masked).",
            nothing="No token was trained yet.", drawings=_plots(runs, plots.CLIPPING),
        ),
    ]  # fmt: skip


def _pipeline(runs: Sequence[RunFacts]) -> list[Section]:
    return [
        Section(
            key="staleness", title="Staleness",
            reading="Weight updates between sampling and training; rewards at different staleness also come from "
            "different times of the run.",
            nothing="No sample was trained yet.", drawings=(*_staleness(runs), *_plots(runs, plots.STALENESS)),
        ),
        Section(
            key="time", title="Time",
            reading="Where a step's wall time goes. Much waiting for samples means that generation or scoring is the "
            "bottleneck: compare how long the two take; groups that wait for the scorer say that it is scoring.",
            nothing="No times were recorded.",
            drawings=(*_step_times(runs), *_plots(runs, plots.WORK, plots.PACE)),
        ),
        Section(
            key="queues", title="Queues and back-pressure",
            reading="An empty queue makes the learner wait for the generator. The limit with the longest waits is the one that "
            "holds the generator back: run-ahead means that the learner is the slower one.",
            nothing="Neither queues nor waits were recorded.",
            drawings=_plots(
                runs, plots.SAMPLE_QUEUE, plots.SCORE_QUEUE, plots.WAITS, plots.LIMITS, plots.CONCURRENCY, plots.KV_CACHE,
                plots.REQUESTS,
            ),
        ),
        Section(
            key="drops", title="Dropped groups over the steps",
            reading="Groups per step that were sampled and judged but not trained, by reason.",
            nothing="No group was dropped.", drawings=_drops(runs),
        ),
    ]  # fmt: skip


def _plots(runs: Sequence[RunFacts], *wanted: Plot) -> tuple[Drawing, ...]:
    """One chart per plot for one run; for several, one per measure. What no run measured is left out."""
    found: list[Drawing] = []
    for plot in wanted:
        if len(runs) == 1:
            shown = [(name, label) for name, label in plot.measures if _present(runs[0].measure(name))]
            lines = [
                _line(runs[0], runs[0].measure(name), label, 0, style) for style, (name, label) in enumerate(shown)
            ]
            found += [_draw(plot.key, plot.title, plot, lines)] if lines else []
            continue
        for place, (name, label) in enumerate(plot.measures):
            title = plot.title if len(plot.measures) == 1 else f"{plot.title}: {label}"
            lines = _overlaid(runs, lambda facts, name=name: facts.measure(name))
            found += [_draw(f"{plot.key}-{place}", title, plot, lines)] if lines else []
    return tuple(found)


def _draw(key: str, title: str, plot: Plot, lines: Sequence[Line]) -> Drawing:
    caption = captions.at_the_end(lines, plot.suffix, share=plot.share)
    log = plot.log and any((value or 0) > 0 for line in lines for value in line.values)
    unit = plot.unit if log or not plot.log else plot.unit.removesuffix(" (logarithmic)")
    return draw_lines(key, title, unit, caption, lines, log=log, share=plot.share)


def _reward(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    lines: list[Line] = []
    for run, facts in enumerate(runs):
        values = facts.measure("reward")
        if not _present(values):
            continue
        size = _smoothing(facts)
        band = facts.reward_band if len(runs) <= MOST_BANDS else None
        who, style = ("", FAINT_STYLE) if len(runs) == 1 else (f"{letter(run)}, ", run)
        one, several = ("step", "steps") if facts.window_steps == 1 else ("point", "points")
        lines.append(_line(facts, values, f"{who}each {one}", run, style, faint=True))
        lines.append(_line(facts, smoothed(values, size), f"{who}mean of {size} {several}", run, run, band=band))
    if not lines:
        return ()
    caption = captions.of_rewards(runs)
    return (draw_lines("reward", "Reward per step", "mean reward", caption, lines),)


def _source_names(runs: Sequence[RunFacts]) -> list[str]:
    names = {name for facts in runs for name in facts.measures}
    return sorted(name[8:-5] for name in names if name.startswith("rewards/") and name.endswith("/mean"))


def _only_source(runs: Sequence[RunFacts]) -> str:
    names = _source_names(runs)
    return f"All values are of one reward function: {names[0]}." if names else "No reward function gave a value."


def _sources(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    names = _source_names(runs)
    if len(names) < 2:
        return ()
    measures = tuple((f"rewards/{name}/mean", name) for name in names)
    return _plots(
        runs, Plot(key="sources", title="Mean by reward function", unit="mean before its weight", measures=measures)
    )


def _noted(runs: Sequence[RunFacts]) -> list[Section]:
    """What rewards noted with `log_metric`, a chart for each name; no section where none noted anything."""
    names = sorted({name for facts in runs for name in facts.measures if measure_named(name) is None})
    if not names:
        return []
    left_out = f" {len(names) - MOST_NOTED} more are in the table reward_metrics." if len(names) > MOST_NOTED else ""
    shown = [
        Plot(key=f"noted-{place}", title=name, unit="as noted", measures=((name, name),))
        for place, name in enumerate(names[:MOST_NOTED])
    ]
    reading = "What the rewards noted of their groups, each name over the groups that a step consumed." + left_out
    return [Section(key="noted", title="Noted by rewards", reading=reading, nothing="", drawings=_plots(runs, *shown))]


def _lengths(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    lines = [
        _line(
            facts, facts.length_band.middle, "median completion" if len(runs) == 1 else letter(run), run, run,
            band=facts.length_band if len(runs) <= MOST_BANDS else None,
        )
        for run, facts in enumerate(runs) if _present(facts.length_band.middle)
    ]  # fmt: skip
    if not lines:
        return ()
    caption = captions.at_the_end(lines, "tokens")
    return (draw_lines("lengths", "Median length", "tokens per completion", caption, lines),)


def _staleness(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    if not any(facts.staleness for facts in runs):
        return ()
    totals = [sum(bar.num_samples for bar in facts.staleness) for facts in runs]
    shares = [
        {_bar_label(bar.first, bar.last): bar.num_samples / total for bar in facts.staleness}
        for facts, total in zip(runs, totals, strict=True)
    ]
    rewards = [{_bar_label(bar.first, bar.last): bar.reward for bar in facts.staleness} for facts in runs]
    late = [
        percent(sum(bar.num_samples for bar in facts.staleness if bar.last > 0) / total) if total else NOTHING
        for facts, total in zip(runs, totals, strict=True)
    ]
    caption = captions.by_run(runs, late) + " of trained samples are at least one weight update old."
    units = ("staleness (weight updates)", "share of trained samples")
    means = "The mean reward of the samples in each bar of the chart before it."
    return (
        draw_bars("staleness-bars", "Trained samples by staleness", units, caption, shares, share=True),
        draw_bars("staleness-reward", "Reward by staleness", (units[0], "mean reward"), means, rewards),
    )


def _step_times(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    """Parts on top of one another for one run; stacks of several cannot share an axis, and their whole steps are drawn."""
    if len(runs) > 1:
        return _plots(runs, plots.STEP_TIME)
    if not runs[0].step_parts:
        return ()
    facts = runs[0]
    whole = sum(facts.part_totals.values())
    large = [part for part in facts.step_parts if facts.part_totals[part] >= SMALL_SHARE * whole and part != "other"]
    small = [part for part in facts.step_parts if part not in large]
    lines = [_line(facts, facts.step_parts[part], part, 0, style) for style, part in enumerate(large)]
    if small:
        rest = [
            sum(values[place] or 0 for part, values in facts.step_parts.items() if part in small)
            for place in range(len(facts.windows))
        ]
        lines.append(_line(facts, rest, " + ".join(small), 0, FAINT_STYLE))
    first = max(facts.part_totals, key=lambda part: facts.part_totals[part])
    caption = (
        f"Of all steps' time, {percent(facts.part_totals[first] / whole)} is {first}. {captions.of_work(facts)}".strip()
    )
    return (draw_stack("parts", "Parts of a step", "seconds per step", caption, lines),)


def _drops(runs: Sequence[RunFacts]) -> tuple[Drawing, ...]:
    if len(runs) == 1:
        facts = runs[0]
        lines = [_line(facts, values, reason, 0, style) for style, (reason, values) in enumerate(facts.drops.items())]
        caption = captions.at_the_end(lines, "groups per step")
        return (draw_stack("drops", "Dropped groups by reason", "groups per step", caption, lines),) if lines else ()
    found: list[Drawing] = []
    for place, reason in enumerate(sorted({reason for facts in runs for reason in facts.drops})):
        lines = _overlaid(runs, lambda facts, reason=reason: facts.drops.get(reason, (0.0,) * len(facts.windows)))
        caption = captions.at_the_end(lines, "groups per step")
        found.append(draw_lines(f"drops-{place}", f"Dropped groups: {reason}", "groups per step", caption, lines))
    return tuple(found)


def _overlaid(runs: Sequence[RunFacts], values_of: Callable[[RunFacts], Values]) -> list[Line]:
    return [
        _line(facts, values_of(facts), letter(run), run, run)
        for run, facts in enumerate(runs)
        if _present(values_of(facts))
    ]


def _line(
    facts: RunFacts, values: Values, label: str, run: int, style: int, *, faint: bool = False, band: Band | None = None
) -> Line:
    return Line(label=label, windows=facts.windows, values=values, run=run, style=style, faint=faint, band=band)


def _shade(runs: Sequence[RunFacts], over: str) -> str:
    return f" The shade holds the middle 80 % {over}." if len(runs) <= MOST_BANDS else ""


def _smoothing(facts: RunFacts) -> int:
    return max(5, len(facts.windows) // SMOOTHED_SHARE)


def _bar_label(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _present(values: Values) -> bool:
    return any(value is not None for value in values)
