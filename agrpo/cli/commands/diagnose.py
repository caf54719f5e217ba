"""`agrpo diagnose`: what a run's last steps say, and what to change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import ListFormat

if TYPE_CHECKING:
    from rich.text import Text

    from agrpo.instruments.diagnosis import Finding
    from agrpo.instruments.history import StepPoint

PANEL = Panel.LOOK

WIDEST = 100
"""Columns; longer lines are hard to read."""
INDENT = " " * len("warning  ")
NO_BREAK = "\N{NO-BREAK SPACE}"

_STYLES = {"warning": "bold #D55E00", "note": "bold #0072B2", "good": "bold #009E73"}
"""Colours that colour-blind readers tell apart (Okabe and Ito)."""


def diagnose(
    run: RunArgument,
    window: Annotated[
        int,
        typer.Option(min=4, max=500, help="Steps to read. Whether a measure rises or falls: as many before them too."),
    ] = 20,
    form: Annotated[ListFormat, typer.Option("--format", help="For people or for programs.")] = ListFormat.TABLE,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where there is a warning. For scripts.")
    ] = False,
    runs_dir: DirOption = "./runs",
) -> None:
    """Say in words what a run's last steps show, worst first, and which setting to change.

    Reads what was recorded, also while the run goes on: who waits for whom, whether the prompts still teach,
    whether sampling is random, whether training is stable; before the first steps, whether any group can be trained.
    docs/diagnosis.md explains every rule by its name.

    Example: agrpo diagnose latest --window 50
    """
    from agrpo.instruments.diagnosis import Severity, recorded_ending, recorded_waiting
    from agrpo.instruments.diagnosis import diagnose as read
    from agrpo.instruments.history import recorded_history
    from agrpo.runs import find

    folder = find(run, runs_dir)
    document = folder.document()
    settings = document["settings"]["tree"]
    points = recorded_history(folder)
    waiting = recorded_waiting(folder, settings)
    findings = [*recorded_ending(folder), *read(points, settings, window=window, waiting=waiting)]
    if form is ListFormat.JSON:
        print(json.dumps(_for_programs(document["name"], points[-window:], findings), indent=1, ensure_ascii=False))
    else:
        _print(document["name"], points[-window:], findings)
    if strict and any(finding.severity is Severity.WARNING for finding in findings):
        raise typer.Exit(1)


def _for_programs(name: str, window: Sequence[StepPoint], findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "run": name,
        "first_step": window[0].step if window else None,
        "last_step": window[-1].step if window else None,
        "findings": [asdict(finding) for finding in findings],
    }


def _print(name: str, window: Sequence[StepPoint], findings: Sequence[Finding]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    steps = f"steps {window[0].step} to {window[-1].step}" if window else "no finished step"
    console.print(f"{name}, {steps}", style="bold", markup=False)
    for paragraph in _paragraphs(findings, min(console.width, WIDEST)):
        console.print()
        console.print(paragraph)


def _paragraphs(findings: Sequence[Finding], width: int) -> Iterator[Text]:
    """Each finding that asks for something, then in one what is as it should be."""
    good = [finding for finding in findings if finding.severity == "good"]
    asking = [finding for finding in findings if finding.severity != "good"]
    for finding in asking:
        title = f"{finding.title} [{finding.rule}]"
        yield _entry(finding.severity, title, [finding.reading, f"Change: {finding.change}"], width)
    if good:
        title = "As it should be" if asking else "Healthy: nothing to change"
        told = " ".join(f"{finding.reading.removesuffix('.')} [{finding.rule}]." for finding in good)
        yield _entry("good", title, [told], width)
    elif not asking:
        told = "No rule has anything to say of what was measured: it lies between the bounds of docs/diagnosis.md."
        yield _entry("note", "Nothing stands out", [told], width)


def _entry(severity: str, title: str, sentences: Sequence[str], width: int) -> Text:
    """The severity beside a title, and paragraphs below it."""
    from rich.text import Text

    text = Text(severity.ljust(len(INDENT)), _STYLES[severity])
    text.append(_fill(title, width).removeprefix(INDENT), "bold")
    for sentence in sentences:
        text.append("\n" + _fill(sentence, width))
    return text


def _fill(text: str, width: int) -> str:
    """Indented lines that keep names of settings whole, and numbers with their units."""
    lines = fill(
        re.sub(r"(?<=\d) (?=%|s\b|nats\b)", NO_BREAK, text),
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace(NO_BREAK, " ")
