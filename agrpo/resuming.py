"""Going on with a run: found by its settings, checked to be the run it was, and amended where that decides nothing."""

from __future__ import annotations

from pathlib import Path

from agrpo import runs
from agrpo.config import RunConfig, Settings, load_settings
from agrpo.config.amendments import AMENDABLE, HORIZON, OF_FACTORIES, changes
from agrpo.errors import ConfigError, RunBusy, RunNotFound
from agrpo.queue.amendments import amend
from agrpo.queue.at_work import learner_at_work
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.run_folder import RunFolder
from agrpo.runs.beginning import with_whole_paths
from agrpo.runs.publishing import keeps_settled


def take_up(folder: RunFolder, settings: Settings | None = None, *, trains: bool = True) -> None:
    """Make sure that the run may go on here, under other `settings` if they are given.

    Every way to go on with a run passes here. `trains`: a learner is among the stages to be started. Raises
    `RecordTooNew` for a run of a newer agrpo, `RunBusy` where a learner is at work, `ConfigError` for other model files or
    prompts, for settings that decide what comes out of a run, and for a run that takes more memory than is here.
    """
    folder.run_json()  # before anything is waited for
    at_work = learner_at_work(folder) if trains else None
    if at_work is not None:
        raise RunBusy(
            f"{folder.url} is being trained by {at_work}; two learners would only retire one another. Follow it with "
            f"`agrpo watch {folder.url}`, or end that process and resume the run then"
        )
    runs.check_unchanged(folder)
    if settings is not None:
        _amend(folder, settings)
    if trains:
        runs.refuse_too_large(folder)


def newest_run(settings: Settings, folder: str | None = None) -> RunFolder | None:
    """The newest run of the settings' `run.name` in their `run.dir`, or the one in `folder`; None where there is none."""
    section = RunConfig.build(with_whole_paths(settings)).run
    if folder is not None:
        return _opened(folder)
    names = [name for name in open_filesystem(section.dir).list("") if name.startswith(f"{section.name}-")]
    found = [run for name in names if (run := _opened(f"{section.dir.rstrip('/')}/{name}")) is not None]
    of_name = [run for run in found if run.document()["settings"]["tree"]["run"]["name"] == section.name]
    return max(of_name, key=lambda run: run.document()["created_at"], default=None)


def begun(name: str, settings: Settings) -> RunFolder | None:
    """The run called `name` in the settings' `run.dir`; None where there is none."""
    return _opened(f"{RunConfig.build(with_whole_paths(settings)).run.dir.rstrip('/')}/{name}")


def _opened(url: str) -> RunFolder | None:
    try:
        return RunFolder.open(url if "://" in url else str(Path(url).absolute()))
    except RunNotFound:
        return None


def _amend(folder: RunFolder, settings: Settings) -> None:
    """Compare the settings with the run's; write down what may differ, and refuse the rest. Raises `ConfigError`."""
    asked = runs.refuse_problems(settings, folder=folder.url).settings
    has = RunConfig.build(load_settings(folder.document())).settings
    found = [change for change in changes(has.tree, asked.tree) if not keeps_settled(change, settings)]
    refused = [change for change in found if not change.allowed]
    if refused:
        raise ConfigError([*(str(change) for change in refused), _what_may_change(folder)])
    if found:
        origins = {change.key: asked.origins[change.key] for change in found if change.key in asked.origins}
        amend(folder, {change.key: change.asked for change in found}, origins)


def _what_may_change(folder: RunFolder) -> str:
    of_factories = [f'with factory = "{name}" its {", ".join(own)}' for name, own in OF_FACTORIES.items()]
    return (
        f"{folder.url} goes on under the settings that decide its values, or another run is begun; a resume may change "
        f"{', '.join(AMENDABLE)} ({' and '.join(HORIZON)} only while the schedule of learning rates does not decay), and of an "
        f"environment: {'; '.join(of_factories)}"
    )
