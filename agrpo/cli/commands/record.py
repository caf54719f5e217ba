"""`agrpo record`: bring a run's database up to date."""

from __future__ import annotations

from agrpo.cli.arguments import DirOption, RunArgument
from agrpo.cli.commands import Panel
from agrpo.cli.printing import say

PANEL = Panel.ASK


def record(run: RunArgument, runs_dir: DirOption = "./runs") -> None:
    """Bring a run's database up to date with its folder.

    A run records itself. This is for a database that is gone or of another version of agrpo, and for a run whose recorder
    was killed: the folder holds everything, and the database is only a projection of it. `agrpo rebuild` makes it again
    from nothing.

    Example: agrpo record latest
    """
    from agrpo.config import RecorderSection, load_settings
    from agrpo.database.writer import Database
    from agrpo.runs import find
    from agrpo.stages.recorder import record_once

    folder = find(run, runs_dir)
    settings = RecorderSection(**load_settings(folder.document()).tree.get("recorder", {}))
    database = Database(folder.database)
    num_records = record_once(folder, database, topk=settings.topk)
    say(f"{num_records} records added to {folder.database}")
