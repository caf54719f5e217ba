"""`agrpo show`: read rollouts, token by token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import ListFormat
from agrpo.instruments.rollout_page.colours import Colouring
from agrpo.records.progress import DropReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console, RenderableType

    from agrpo.instruments.rollout_page.choosing import Chosen, Place
    from agrpo.instruments.rollout_page.facts import RolloutPage
    from agrpo.instruments.rollout_page.logs import GroupLog
    from agrpo.queue.run_folder import RunFolder

PANEL = Panel.LOOK
MOST_GROUPS = 20
LISTED = 20
"""Rollouts that the hint at more proposes to list."""


RolloutArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[ROLLOUT]",
        help="TICKET/INDEX such as 12/3; TICKET: the group, then its first rollout; or a rollout's id or its beginning.",
    ),
]
BestOption = Annotated[bool, typer.Option("--best", help="The rollout of the highest reward, the newest of equals.")]
WorstOption = Annotated[bool, typer.Option("--worst", help="The rollout of the lowest reward, the newest of equals.")]
FailedOption = Annotated[
    bool, typer.Option("--failed", help="The newest that brought no answer: engine, tool or time-out.")
]
DroppedOption = Annotated[
    DropReason | None,
    typer.Option(
        "--dropped", metavar="REASON", help=f"The newest of a group dropped for this reason: {', '.join(DropReason)}."
    ),
]
PromptOption = Annotated[
    str | None,
    typer.Option("--prompt", metavar="PROMPT_ID", help="All groups of one prompt; its id or the beginning of it."),
]
LastOption = Annotated[
    int | None, typer.Option("--last", min=1, metavar="N", help="Choose among the last N steps only. Default: all.")
]
CountOption = Annotated[
    int | None,
    typer.Option("-n", min=1, metavar="COUNT", help="How many to show: 1 is a whole page, more are a short list."),
]
ColourOption = Annotated[
    Colouring | None,
    typer.Option(
        "--colour",
        metavar="WHAT",
        help="What a token's colour tells: logprob (the sampler's, default), ratio (importance ratio of learner to "
        "sampler), advantage, entropy (the learner's), version (policy version).",
    ),
]
TokensOption = Annotated[bool, typer.Option("--tokens", help="One row per token, with all that is known of it.")]
LogsOption = Annotated[
    bool, typer.Option("--logs", help="Also what the stages logged about the group, and their warnings meanwhile.")
]
FormatOption = Annotated[ListFormat, typer.Option("--format", help="For people or for programs.")]


def show(
    run: RunArgument,
    rollout: RolloutArgument = None,
    *,
    best: BestOption = False,
    worst: WorstOption = False,
    failed: FailedOption = False,
    dropped: DroppedOption = None,
    prompt: PromptOption = None,
    last: LastOption = None,
    count: CountOption = None,
    colour: ColourOption = None,
    tokens: TokensOption = False,
    logs: LogsOption = False,
    form: FormatOption = ListFormat.TABLE,
    runs_dir: DirOption = "./runs",
) -> None:
    """Read a rollout: its tokens, its rewards, its group and what became of it. Also while the run goes on.

    Example: agrpo show latest 12/3 --colour ratio

    Example: agrpo show latest --worst --last 5 -n 10

    Example: agrpo show latest --dropped stale --tokens

    In a terminal every token has a colour; with NO_COLOR set, or into a pipe, marks around tokens say the same. Into a
    pager with colours: FORCE_COLOR=1 agrpo show latest --best | less -R
    """
    from agrpo.runs import find

    ways = {"ROLLOUT": rollout, "--best": best, "--worst": worst, "--failed": failed, "--dropped": dropped}
    way = _only_way({**ways, "--prompt": prompt})
    layout = {"--colour": colour, "--tokens": tokens, "--logs": logs}
    lists = {"--last": last, "-n": count}
    if way == "ROLLOUT":
        _refuse(lists, "they choose among rollouts, and ROLLOUT is one; leave out")
    elif way == "--prompt" or (count or 1) > 1:
        _refuse(layout, "a list shows no tokens; leave out")
    if form is ListFormat.JSON:
        _refuse({"--colour": colour, "--tokens": tokens}, "JSON has every value of every token; leave out")
    folder = find(run, runs_dir)
    if rollout is not None:
        _show_rollout(folder, rollout, _Layout(colour=colour, tokens=tokens, logs=logs, form=form))
    elif prompt is not None:
        _show_prompt(folder, prompt, last, count or MOST_GROUPS, form)
    else:
        chosen = _pick(folder, way, dropped, last, count or 1)
        _show_chosen(folder, chosen, way, _Layout(colour=colour, tokens=tokens, logs=logs, form=form))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """How a page is shown."""

    colour: Colouring | None
    tokens: bool
    logs: bool
    form: ListFormat


def _only_way(ways: Mapping[str, object]) -> str:
    given = [name for name, value in ways.items() if value not in (None, False)]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude one another; give one of them")
    if not given:
        raise typer.BadParameter(f"which rollout? Give one of {', '.join(ways)}; such as: agrpo show latest --best")
    return given[0]


def _refuse(options: Mapping[str, object], why: str) -> None:
    given = [name for name, value in options.items() if value not in (None, False)]
    if given:
        raise typer.BadParameter(f"{why} {', '.join(given)}")


def _pick(folder: RunFolder, way: str, dropped: DropReason | None, last: int | None, count: int) -> Chosen:
    from agrpo.instruments.rollout_page.choosing import Pick, pick

    return pick(folder, Pick(way.removeprefix("--")), reason=dropped, last=last, count=count)


def _show_rollout(folder: RunFolder, rollout: str, layout: _Layout) -> None:
    from agrpo.instruments.rollout_page.choosing import find_rollout

    _show_page(folder, find_rollout(folder, rollout), layout, group_first=rollout.isdigit())


def _show_chosen(folder: RunFolder, chosen: Chosen, way: str, layout: _Layout) -> None:
    from agrpo.instruments.rollout_page.document import list_document
    from agrpo.instruments.rollout_page.tables import chosen_table

    first, num = chosen.rollouts[0], chosen.num_matching
    if chosen.asked == 1:
        _show_page(folder, first.place, layout)
        if layout.form is ListFormat.TABLE:
            _print(
                [f"{way}: the first of {num}; -n {min(num, LISTED)} lists more" if num > 1 else f"{way}: the only one"]
            )
    elif layout.form is ListFormat.JSON:
        print(list_document("rollouts", chosen.rollouts, num))
    else:
        more = f"{way}: {len(chosen.rollouts)} of {num}; read one with: agrpo show {folder.url} {first.place}"
        _print([chosen_table(chosen.rollouts), more])


def _show_prompt(folder: RunFolder, prompt: str, last: int | None, count: int, form: ListFormat) -> None:
    from agrpo.instruments.rollout_page.choosing import groups_of_prompt
    from agrpo.instruments.rollout_page.document import list_document
    from agrpo.instruments.rollout_page.header import messages
    from agrpo.instruments.rollout_page.tables import prompt_table

    found = groups_of_prompt(folder, prompt, last=last, count=count)
    if form is ListFormat.JSON:
        print(list_document("groups", found.groups, found.num_matching, prompt_id=found.prompt_id, prompt=found.prompt))
        return
    shown = f"{len(found.groups)} of {found.num_matching} groups, newest first"
    more = f"read one with: agrpo show {folder.url} {found.groups[0].ticket}"
    _print([f"prompt {found.prompt_id}: {shown}", *messages(found.prompt), prompt_table(found.groups), more])


def _show_page(folder: RunFolder, place: Place, layout: _Layout, *, group_first: bool = False) -> None:
    from agrpo.instruments.rollout_page.document import page_document
    from agrpo.instruments.rollout_page.page import log_section, rollout_page
    from agrpo.instruments.rollout_page.pieces import pieces_of
    from agrpo.instruments.rollout_page.reading import read_page

    document = folder.document()
    page = read_page(folder, place, pieces_of(document, folder.local))
    log = _log(folder, page) if layout.logs else None
    if layout.form is ListFormat.JSON:
        print(page_document(page, log))
        return
    shown = rollout_page(
        page,
        document["settings"]["tree"],
        colouring=layout.colour or Colouring.LOGPROB,
        as_table=layout.tokens,
        group_first=group_first,
        coloured=_console().color_system is not None,
    )
    _print([*shown, *(log_section(log) if log else [])])


def _log(folder: RunFolder, page: RolloutPage) -> GroupLog:
    """From the claim to the end of the step that consumed the group; until now where none has."""
    from agrpo.instruments.rollout_page.logs import read_group_log

    ends = [one.finished_at for one in page.consumed]
    end = None if not ends or None in ends else max(end for end in ends if end is not None)
    return read_group_log(folder.local / "logs", page.group.ticket, page.group.claimed_at, end)


def _print(parts: Iterable[RenderableType]) -> None:
    console = _console()
    for part in parts:
        console.print(part, markup=False, highlight=False)


def _console() -> Console:
    """Without colours, and without any other control sequence, where they are not wanted or cannot be seen."""
    from rich.console import Console

    return Console(color_system=None) if os.environ.get("NO_COLOR") else Console()
