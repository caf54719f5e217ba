"""`agrpo resume`: go on with a run."""

from __future__ import annotations

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption, follow, say_done
from agrpo.cli.printing import say

PANEL = Panel.TRAIN


def resume(run: RunArgument, runs_dir: DirOption = "./runs", plain: PlainOption = False) -> None:
    """Go on with a run that was stopped or killed.

    The learner loads the newest checkpoint and replays the steps recorded after it, to the very weights it had
    published; groups that were generated and not trained are trained now. Nothing is lost and nothing trained twice.
    """
    from agrpo.runs import find

    found = find(run, runs_dir)
    say(f"run {found.url}")
    follow(found.url, plain=plain)
    say_done(found.url)
