"""`agrpo check`: what is wrong with a run's settings, before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from agrpo.cli.arguments import RecipeOption, SetOption
from agrpo.cli.commands import Panel
from agrpo.cli.printing import say
from agrpo.errors import ConfigError

PANEL = Panel.TRAIN


def check(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run's settings.")],
    sets: SetOption = None,
    recipe: RecipeOption = None,
) -> None:
    """Say everything that is wrong with a run's settings, model, prompts, rewards and place, and start nothing.

    Prints the resolved settings with the origin of each when all is well, and what memory each process is likely to take.
    """
    from agrpo.config import RunConfig, resolve
    from agrpo.recipes import beneath
    from agrpo.runs import check as find_problems
    from agrpo.runs.beginning import with_whole_paths
    from agrpo.runs.checks import impatience, unreached_lengths
    from agrpo.runs.idle_gpus import idle_gpus
    from agrpo.runs.memory import lines, machine_here, plan_memory, warnings
    from agrpo.runs.publishing import settled
    from agrpo.runs.serving import ask_servers

    config = settled(RunConfig.build(with_whole_paths(resolve(file, sets or [], beneath=beneath(recipe)))))
    problems = find_problems(config)
    if problems:
        raise ConfigError(problems)
    for table, values in config.settings.tree.items():
        for key, value in values.items() if isinstance(values, dict) else [(None, value) for value in values]:
            where = table if key is None else f"{table}.{key}"
            origin = config.settings.origins.get(where, config.settings.origins.get(table, "default"))
            resolved = f": {config.zero_variance}" if where == "step.zero_variance" and value is None else ""
            print(f"{where} = {json.dumps(value)}  # {origin}{resolved}")
    machine = machine_here()
    plan = plan_memory(config, machine)
    warned = [*warnings(plan), *idle_gpus(config, machine), *unreached_lengths(config), *impatience(config)]
    for line in [*lines(plan), *warned]:
        say(line)
    for line in ask_servers(config):
        say(line)
    say(f"{file}: nothing is wrong")
