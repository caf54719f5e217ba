"""`agrpo watch`: see a run as it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption
from agrpo.cli.printing import say

if TYPE_CHECKING:
    from agrpo.instruments.live.looking import Look
    from agrpo.queue.run_folder import RunFolder

PANEL = Panel.LOOK


def watch(run: RunArgument = "latest", runs_dir: DirOption = "./runs", plain: PlainOption = False) -> None:
    """See a run as it goes on, from any terminal, without keeping it waiting.

    Shows how far it is and how long it will take; reward, tokens per second, time of a step, completion length, entropy and
    groups with equal rewards; how stale the trained groups are and how many are begun and not trained; what every stage does
    or waits for; the newest warnings and what to make of it all. Into a pipe: one line per step, and one where no step comes.
    Reads the run's folder and not its database.

    Ends with the run. Ctrl-C ends the watching, and the run goes on. A finished run is shown once.

    Example: agrpo watch latest
    """
    from agrpo.runs import find

    folder = find(run, runs_dir)
    try:
        look = _watch(folder, plain=plain)
    except KeyboardInterrupt:
        say(f"no longer watching; the run goes on. agrpo watch {folder.url} shows it again")
    else:
        _say_end(look)


def _watch(folder: RunFolder, *, plain: bool) -> Look:
    """The last look at the run."""
    from agrpo.instruments.live.showing import LiveView, can_show
    from agrpo.instruments.live.telling import tell

    if plain or not can_show():
        return tell(folder, say)
    with LiveView(folder) as view:
        view.ended.wait()
    if view.error is not None:
        raise view.error
    assert view.look is not None, "a view that ended without an error has looked"
    return view.look


def _say_end(look: Look) -> None:
    from agrpo.instruments.live.looking import STOPPED_SECONDS, State

    if look.state is State.FINISHED:
        say(f"finished after step {look.points[-1].step if look.points else 0}")
    else:
        say(
            f"unfinished, and no stage has spoken for {STOPPED_SECONDS:.0f} s; `agrpo resume {look.url}` goes on with it"
        )
