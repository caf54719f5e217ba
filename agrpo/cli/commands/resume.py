"""`agrpo resume`: go on with a run."""

from __future__ import annotations

from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument, SetOption
from agrpo.cli.commands import Panel
from agrpo.cli.following import PlainOption, follow, say_done
from agrpo.cli.printing import say

PANEL = Panel.TRAIN


def resume(
    run: RunArgument,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from-step",
            metavar="K",
            help="Go back to the weights after step K and train on from there. The steps after K stay recorded, beside the "
            "run's history; prompts whose groups belong to them are asked again first.",
        ),
    ] = None,
    sets: SetOption = None,
    runs_dir: DirOption = "./runs",
    plain: PlainOption = False,
) -> None:
    """Go on with a run that was stopped or killed.

    The learner loads the newest checkpoint and replays the steps recorded after it, to the very weights it had
    published; groups that were generated and not trained are trained now. Nothing is lost and nothing trained twice.

    A run keeps the settings that decide what comes out of it; `--set` may change others, such as stop.max_steps.

    Example: agrpo resume latest --from-step 40

    Example: agrpo resume latest --set stop.max_steps=200
    """
    from agrpo.config import RunConfig, load_settings, resolve
    from agrpo.resuming import take_up
    from agrpo.runs import find, go_back
    from agrpo.runs.memory import headings, machine_here, plan_memory

    found = find(run, runs_dir)
    asked = resolve(values=found.document()["settings"]["tree"], sets=sets) if sets else None
    take_up(found, asked)
    for line in headings(plan_memory(RunConfig.build(load_settings(found.document())), machine_here())):
        say(line)
    say(f"run {found.url}")
    if from_step is not None:
        go_back(found, from_step)
        say(f"going back to step {from_step}")
    follow(found.url, plain=plain)
    say_done(found.url)
