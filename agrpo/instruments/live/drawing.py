"""Drawing what was seen of a run: lines for a terminal of any size, with or without blocks and colours."""

from __future__ import annotations

import math

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agrpo.instruments.diagnosis import Severity
from agrpo.instruments.diagnosis.finding import NOTHING
from agrpo.instruments.live.curves import chart, columns_of
from agrpo.instruments.live.layout import Block, laid_out
from agrpo.instruments.live.looking import Look, StageWord, State
from agrpo.instruments.live.measures import MeasureLine, measure_lines, newest, series
from agrpo.instruments.live.notices import Notice
from agrpo.instruments.progress import max_steps, seconds_left, share_done
from agrpo.instruments.wording import duration, percent

DIM, BOLD = "dim", "bold"
CURVE, GOOD, NOTE, ALARM = "#56B4E9", "#009E73", "#E69F00", "#D55E00"
"""Okabe and Ito's colours; every one of them says what a word beside it says too."""
SEVERITIES = {Severity.GOOD: GOOD, Severity.NOTE: NOTE, Severity.WARNING: ALARM}

LABEL = 15
"""Characters of the labels on the left."""
SPARK_AT, SPARK = 55, 24
"""Where a measure's own curve begins, and its characters; a narrower terminal shows none."""
MOST_ROWS, TALL = 6, 36
"""Of findings and of warnings; half of that where the terminal has fewer lines."""


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
    most = MOST_ROWS if height >= TALL else MOST_ROWS // 2
    stages = [_stage(stage, look, ascii_only) for stage in look.stages if not _has_ended(stage, look)]
    return laid_out(
        head=[_name_line(look, width), _progress_line(look, width, ascii_only)],
        curve=lambda rows: _reward(look, width, rows, ascii_only),
        measures=[Block(text=_measure(line, width, ascii_only), indent=LABEL) for line in measure_lines(look)],
        stages=[Block(text=stage, indent=LABEL) for stage in stages],
        findings=[Block(text=finding, indent=LABEL) for finding in _findings(look)[:most]],
        notices=[Block(text=notice, indent=len("00:00:00 ")) for notice in _notices(look, ascii_only)[-most:]],
        width=width,
        height=height,
    )


def _name_line(look: Look, width: int) -> Text:
    style = {State.FINISHED: GOOD, State.SILENT: ALARM}.get(look.state, BOLD)
    state = str(look.state)
    attempt = look.attempt or (look.points[-1].attempt if look.points else 0)
    if attempt:
        state += f", attempt {attempt}"
    name = Text(str(look.document["name"]), style=BOLD)
    name.truncate(max(8, width - len(state) - 2))
    return Text.assemble(name, " " * max(2, width - len(name) - len(state)), (state, style))


def _progress_line(look: Look, width: int, ascii_only: bool) -> Text:
    if not look.points:
        late = f", after {duration(look.idle_seconds)}" if look.late else ""
        return Text.assemble(("no step is done yet", DIM), (late, NOTE))
    point, last = look.points[-1], max_steps(look.document)
    share = share_done(look.document, point)
    step = f"step {point.step}" + (f"/{last}" if last else "")
    told, style = f"{percent(share):>5}", ""
    left = seconds_left(look.document, look.points, since_step=look.idle_seconds)
    if look.late:
        told, style = f"{told}  no step for {duration(look.idle_seconds)}", NOTE
    elif look.state is State.TRAINING and left:
        told = f"{told}  about {duration(left)} left"
    length = max(0, width - len(step) - len(told) - 4)
    done = round(share * length)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((step, BOLD), "  ", (full * done, CURVE), (empty * (length - done), DIM), "  ", (told, style))


def _reward(look: Look, width: int, rows: int, ascii_only: bool) -> list[Text]:
    """The reward of every step, with its extremes at the axis, and the newest below."""
    told = newest(look.points, "reward")
    columns = columns_of(series(look.points, "reward"), width - 9, most_values=max_steps(look.document))
    if told is None:
        return [Text("reward   no step has one yet", style=DIM)] if look.points else []
    values = [value for value in columns if math.isfinite(value)]
    if not values:
        return []
    axis = "|" if ascii_only else "│"
    labels = {rows // 2: " reward ", 0: f"{max(values):7.3f} ", rows - 1: f"{min(values):7.3f} "}
    if labels[0] == labels[rows - 1]:
        del labels[0]
    drawn = chart(columns, rows, ascii_only=ascii_only)
    lines = [Text.assemble((labels.get(row, " " * 8) + axis, DIM), (text, CURVE)) for row, text in enumerate(drawn)]
    first, last = f"step {look.points[0].step}", f"step {look.points[-1].step}: reward {told.value:.3f}{told.step}"
    gap = len(columns) - len(first) - len(last)
    foot = f"{first}{' ' * gap}" if gap >= 2 else ""
    return [*lines, Text.assemble((" " * 9 + foot, DIM), (last, BOLD))]


def _measure(line: MeasureLine, width: int, ascii_only: bool) -> Text:
    text = Text.assemble((f"{line.label:<{LABEL}}", DIM), line.text)
    if sum(map(math.isfinite, line.history)) > 1 and width >= SPARK_AT + SPARK and len(text) < SPARK_AT:
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
    waited = f"{duration(math.floor(stage.waited_seconds))} " if stage.waited_seconds >= 1 else ""
    return Text.assemble(f"{waits} {label}waits {waited}for {stage.waiting_for}")


def _findings(look: Look) -> list[Text]:
    """Of a run without a step the reading as well: there is nothing else to see of it."""
    lines: list[Text] = []
    for finding in look.findings:
        told = finding.title if look.points else f"{finding.title}. {finding.reading}"
        change = "" if finding.change == NOTHING else f"{'' if told.endswith('.') else '.'} {finding.change}"
        style = SEVERITIES[finding.severity]
        lines.append(Text.assemble((f"{finding.severity.value:<{LABEL}}", style), told, (change, DIM)))
    return lines


def _notices(look: Look, ascii_only: bool) -> list[Text]:
    cross = "x" if ascii_only else "×"
    return [
        Text.assemble(
            (_clock(notice), DIM),
            (f"{notice.level} ", ALARM),
            notice.stage,
            f" {cross}{notice.times:,}: " if notice.times > 1 else ": ",
            " ".join(notice.text.split()),
        )
        for notice in look.notices
    ]


def _clock(notice: Notice) -> str:
    """Local time of day, with a space behind it."""
    return f"{notice.at.astimezone():%H:%M:%S} " if notice.at else ""
