"""`agrpo replay`: a run's policy made again from its history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import say
from agrpo.cli.progress import progress

PANEL = Panel.LOOK


def replay(
    run: RunArgument,
    *,
    to_step: Annotated[int | None, typer.Option("--to-step", metavar="N", help="Default: the last step done.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A new folder for the model, as from_pretrained reads it.")
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Pass over the checkpoints: replay every step from the first weights.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where the model that the run began with lies on this machine."),
    ] = None,
    runs_dir: DirOption = "./runs",
) -> None:
    """Make the policy of a step again from history alone, and say whether it is the same, bit for bit.

    It begins at the newest whole checkpoint, or at the first weights, and carries out the recorded steps on the recorded
    groups as the learner did. Every digest is held against the recorded one. Ends with 0 where all agree, with 1 and the first
    step that differs where they do not. Writes nothing into the run; a copy of its folder on another machine will do.

    Example: agrpo replay latest --from-start

    Example: agrpo replay latest --to-step 20 --out step-20
    """
    from agrpo.audit import replay as carry_out
    from agrpo.quickstart.progress import transformers_bars_hidden
    from agrpo.runs import find

    folder = find(run, runs_dir)
    with progress() as tell, transformers_bars_hidden():
        outcome = carry_out(folder, to_step=to_step, out=out, from_start=from_start, model=model, tell=tell)
    for reason in outcome.passed_over:
        say(f"passed over: {reason}")
    if outcome.machine:
        say(f"another kind of machine: {'; '.join(outcome.machine)}")
    begun = f"the checkpoint of step {outcome.begun_at}" if outcome.begun_at else "the first weights"
    if outcome.steps:
        seconds = sum(step.seconds for step in outcome.steps) / len(outcome.steps)
        recorded = sum(step.recorded_seconds for step in outcome.steps) / len(outcome.steps)
        say(
            f"{len(outcome.steps)} steps replayed from {begun}: {seconds:.3f} s a step, {recorded:.3f} s when they were done"
        )
    else:
        say(f"nothing to replay: {begun} is step {outcome.to_step} itself; --from-start replays every step")
    if not outcome.identical:
        say(f"differs: {outcome.difference}")
        raise typer.Exit(1)
    say(f"bit-identical: step {outcome.to_step} has digest {outcome.digest}, as it was recorded")
    if out is not None:
        say(f"{out.absolute()} holds the model")
