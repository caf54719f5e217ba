"""Drawing what was seen of a run: lines for a terminal of any size, with or without blocks and colours."""

from __future__ import annotations

import math

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agrpo.instruments.diagnosis import Severity
from agrpo.instruments.diagnosis.finding import NOTHING
from agrpo.instruments.live.curves import chart, columns_of
from agrpo.instruments.live.looking import Look, StageWord, State
from agrpo.instruments.live.measures import MeasureLine, measure_lines, series
from agrpo.instruments.live.notices import Notice
from agrpo.instruments.progress import max_steps, seconds_left, share_done

DIM, BOLD = "dim", "bold"
CURVE, GOOD, NOTE, ALARM = "#56B4E9", "#009E73", "#E69F00", "#D55E00"
"""Okabe and Ito's colours; every one of them says what a word beside it says too."""
SEVERITIES = {Severity.GOOD: GOOD, Severity.NOTE: NOTE, Severity.WARNING: ALARM}

LABEL = 15
"""Characters of the labels on the left."""
SPARK_AT, SPARK = 55, 24
"""Where a measure's own curve begins, and its characters; a narrower terminal shows none."""
LEAST_ROWS, MOST_ROWS, TALL = 3, 6, 36
"""Rows of the reward curve, of findings and of warnings; the most of them on a terminal that has so many lines."""


class Drawing:
    """One look as rich shows it. It breaks no line, and leaves three of the terminal's for what is said below it."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, max(1, (options.height or console.height) - 3)
        for line in draw(self._look, width, height, ascii_only=options.ascii_only):
            line.no_wrap, line.overflow = True, "crop" if options.ascii_only else "ellipsis"
            yield line


def draw(look: Look, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
    """At most `height` lines: the run, its reward, its measures, its stages, and what asks for attention."""
    head = [_name_line(look, width), _progress_line(look, width, ascii_only)]
    measures = [_measure(line, width, ascii_only) for line in measure_lines(look)]
    stages = [_stage(stage, look, ascii_only) for stage in look.stages if not _has_ended(stage, look)]
    most = MOST_ROWS if height >= TALL else LEAST_ROWS
    findings, notices = _findings(look)[:most], _notices(look)[-most:]
    room = height - sum(map(len, (head, measures, stages, findings, notices))) - LEAST_ROWS - 1
    gaps = sum(1 for section in (measures, stages, findings, notices) if section) + 1
    rows = LEAST_ROWS + min(MOST_ROWS, max(0, room - gaps))
    lines: list[Text] = []
    for section in (head, _reward(look, width, rows, ascii_only), measures, stages, findings, notices):
        if lines and section and room >= gaps:
            lines.append(Text())
        lines += section
    return lines[:height]


def _name_line(look: Look, width: int) -> Text:
    style = {State.FINISHED: GOOD, State.SILENT: ALARM}.get(look.state, BOLD)
    state = str(look.state)
    if look.points and look.points[-1].attempt:
        state += f", attempt {look.points[-1].attempt}"
    name = Text(str(look.document["name"]), style=BOLD)
    name.truncate(max(8, width - len(state) - 2))
    return Text.assemble(name, " " * max(2, width - len(name) - len(state)), (state, style))


def _progress_line(look: Look, width: int, ascii_only: bool) -> Text:
    if not look.points:
        return Text("no step is done yet", style=DIM)
    newest, last = look.points[-1], max_steps(look.document)
    share = share_done(look.document, newest)
    step = f"step {newest.step}" + (f"/{last}" if last else "")
    told = f"{share:4.0%}".replace("%", " %")
    left = seconds_left(look.document, look.points)
    if look.state is State.TRAINING and left:
        left = max(0.0, left - max(0.0, look.at - newest.finished_at))
        told += f"  about {duration(left)} left"
    length = max(0, width - len(step) - len(told) - 4)
    done = round(share * length)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((step, BOLD), "  ", (full * done, CURVE), (empty * (length - done), DIM), "  ", told)


def _reward(look: Look, width: int, rows: int, ascii_only: bool) -> list[Text]:
    """The reward of every step, with its extremes at the axis."""
    steps = [point.step for point in look.points if math.isfinite(point.metrics.get("reward", math.nan))]
    values = series(look.points, "reward")
    columns = columns_of(values, width - 9, most_values=max_steps(look.document))
    if not columns:
        return [] if values else [Text("reward   nothing scored yet", style=DIM)]
    axis = "|" if ascii_only else "│"
    labels = {0: f"{max(columns):7.3f} ", 1: " reward ", rows - 1: f"{min(columns):7.3f} "}
    drawn = chart(columns, rows, ascii_only=ascii_only)
    lines = [Text.assemble((labels.get(row, " " * 8) + axis, DIM), (text, CURVE)) for row, text in enumerate(drawn)]
    first, last = f"step {steps[0]}", f"step {steps[-1]}: reward {values[-1]:.3f}"
    gap = len(columns) - len(first) - len(last)
    foot = f"{first}{' ' * gap}" if gap >= 2 else ""
    return [*lines, Text.assemble((" " * 9 + foot, DIM), (last, BOLD))]


def _measure(line: MeasureLine, width: int, ascii_only: bool) -> Text:
    text = Text.assemble((f"{line.label:<{LABEL}}", DIM), line.text)
    if len(line.history) > 1 and width >= SPARK_AT + SPARK and len(text) < SPARK_AT:
        spark = chart(columns_of(line.history, SPARK), 1, ascii_only=ascii_only)[0]
        text.append(" " * (SPARK_AT - len(text)))
        text.append(spark, style=CURVE)
    return text


def _has_ended(stage: StageWord, look: Look) -> bool:
    """A stage of a finished run that has nothing more to say."""
    return look.state is State.FINISHED and (look.ended or stage.silent or not stage.spoken)


def _stage(stage: StageWord, look: Look, ascii_only: bool) -> Text:
    works, waits, alarm = ("*", "-", "!") if ascii_only else ("●", "○", "!")
    label = f"{stage.name:<{LABEL - 2}}"
    if not stage.spoken:
        return Text.assemble((f"{waits} {label}has not spoken yet", DIM))
    if stage.silent:
        did = "it worked" if stage.waiting_for is None else f"it waited for {stage.waiting_for}"
        return Text.assemble((f"{alarm} {label}silent for {duration(stage.quiet_seconds)}", ALARM), f"; {did}")
    if stage.waiting_for is None:
        return Text.assemble((f"{works} ", GOOD), f"{label}works")
    waited = f", {duration(stage.waited_seconds)}" if stage.waited_seconds >= 1 else ""
    return Text.assemble(f"{waits} {label}waits for {stage.waiting_for}{waited}")


def _findings(look: Look) -> list[Text]:
    return [
        Text.assemble(
            (f"{finding.severity.value:<{LABEL}}", SEVERITIES[finding.severity]),
            finding.title,
            ("" if finding.change == NOTHING else f". {finding.change}", DIM),
        )
        for finding in look.findings
    ]


def _notices(look: Look) -> list[Text]:
    return [
        Text.assemble((_clock(notice), DIM), (f"{notice.level} ", ALARM), f"{notice.stage}: {notice.text}")
        for notice in look.notices
    ]


def duration(seconds: float) -> str:
    """Rounded as one would say it: `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _clock(notice: Notice) -> str:
    """Local time of day, with a space behind it."""
    return f"{notice.at.astimezone():%H:%M:%S} " if notice.at else ""
