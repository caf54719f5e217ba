"""The flow `train`: one run's stages, each a process of its own under a task of its own.

The hot path of a run never crosses Prefect: stages meet in the run's folder. Prefect starts them, shows them, and is told
how they end.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import refresh_global_settings_context
from prefect.exceptions import CancelledRun
from prefect.futures import PrefectFuture, as_completed
from prefect.runtime import flow_run
from prefect.states import Cancelled
from prefect.task_runners import ThreadPoolTaskRunner

from agrpo import resuming, runs
from agrpo.config import (
    Settings,
    StopSection,
    SupervisionSection,
    WorkersSection,
    load_settings,
    resolve,
)
from agrpo.errors import ConfigError, Stopped
from agrpo.queue.run_folder import RunFolder
from agrpo.quickstart.command import prepared_task
from agrpo.recipes import beneath
from agrpo.stages import SERVER, kind_of, stages_of
from agrpo.stages.process import OnLine, Supervisor
from agrpo.stages.supervision import Supervision
from agrpo.stages.watchdog import Watchdog
from flows.record import SupervisorEvents
from flows.server import ensure_api
from flows.watch import Watch

logger = logging.getLogger("agrpo.flows")

LEARNER = "learner"
"""Its end is the end of training."""
RECORDER = "recorder"
"""Works until all others have ended, and then still records what they wrote last."""
OUTLASTING = (SERVER, RECORDER)
"""Stages that work for the others, and are asked to end when those have ended."""
MOST_STAGES = 128
"""Each has a thread that waits for its process; more than [workers] and engine.replicas allow."""
ENDING_SECONDS = 120.0
"""How long after the learner's last step all other stages may take to end by themselves."""


@dataclass(kw_only=True, slots=True)
class _Follower:
    """Who called `follow`."""

    on_line: OnLine | None = None
    ended: bool = False
    """The run itself has ended, whatever Prefect makes of it."""
    error: Exception | None = None
    """What it ended with."""


_follower: ContextVar[_Follower | None] = ContextVar("follower", default=None)


def follow(run_url: str, on_line: OnLine | None = None) -> None:
    """Run or resume a run here, to its end, as a flow run of the configured Prefect or of a server of this process' own.

    `on_line` is told every stage's lines. It has the terminal for itself, unless PREFECT_LOGGING_LEVEL asks for
    Prefect's own lines as well. Raises what ended the run.
    """
    if "PREFECT_LOGGING_LEVEL" not in os.environ:
        _silence_prefect()
    ensure_api()
    follower = _Follower(on_line=on_line)
    token = _follower.set(follower)
    try:
        train(run=run_url)
    except CancelledRun:
        raise Stopped(f"the run was cancelled; `agrpo resume {run_url}` goes on with it") from None
    except Exception as error:
        if follower.error is not None:
            raise follower.error from None
        if not follower.ended:
            raise
        logger.warning("the run has ended well, and Prefect cannot be told: %s: %s", type(error).__name__, error)
        _give_up_on_prefect()
    finally:
        _follower.reset(token)


@flow(name="train", task_runner=ThreadPoolTaskRunner(max_workers=MOST_STAGES), persist_result=False)  # type: ignore[arg-type]
def train(
    *,
    run: str | None = None,
    config: str | None = None,
    quickstart: str | None = None,
    settings: list[str] | None = None,
    recipe: str | None = None,
    resume: bool = False,
    runs_dir: str = "./runs",
    stages: list[str] | None = None,
) -> State[Any] | str:
    """Train a run to its end: a new one from `config`, or the one that `run` names.

    Args:
        run: A run to go on with: its folder or URL, the beginning of its name, or `latest`.
        config: Path of a TOML file; begins a new run. A retry of the flow run goes on with the run it began.
        quickstart: Instead of `config`: a task of `agrpo quickstart`, prepared in `runs_dir` where it is not there yet.
        settings: `table.key=value`, laid over the file, or over what `run` has: then only what decides no value of the run.
        recipe: With `config` or `quickstart`: papers' settings under those of the file, such as `dapo,tis`.
        resume: With `config` or `quickstart`: go on with the newest run of that name, and begin one only where there is none.
        runs_dir: Folder in which `run` is looked up.
        stages: Which stages to run here. None: all of them.
    """
    given = {"run": run, "config": config, "quickstart": quickstart}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1 or (run is not None and resume):
        raise ConfigError(
            f"{', '.join([*named, *(['resume'] if resume else [])]) or 'run, config, quickstart'}: give one of config or "
            "quickstart to begin a run, with resume to go on with the newest one; or run, alone, to go on with that one"
        )
    if run is not None and recipe is not None:
        raise ConfigError(
            f"recipe = {recipe!r}: a run keeps the recipes that it began with; leave it out, or begin another run"
        )
    if quickstart is not None:
        config, settings = prepare_quickstart(quickstart, runs_dir), [f"run.dir={runs_dir}", *(settings or [])]
    asked = _asked(run, config, settings or [], recipe, runs_dir)
    amends, trains = run is None or bool(settings), stages is None or LEARNER in stages
    folder = _run_folder(asked, resume=resume, amends=amends, trains=trains)
    follower = _follower.get() or _Follower()
    try:
        cancelled = _supervise(folder, stages)
    except Exception as error:
        follower.error = error
        raise
    if cancelled:
        return Cancelled(message=f"cancelled; resume it with run={folder.url}")
    follower.ended = True
    return folder.url


@task(name="prepare quickstart", persist_result=False, cache_policy=NO_CACHE)
def prepare_quickstart(task_name: str, runs_dir: str) -> str:
    """The run file of a quickstart task, warm-started here with seed 1 unless that was done before."""
    prepared = prepared_task(task_name, seed=1, runs_dir=runs_dir)
    return str(prepared.run_file)


@task(name="stage", task_run_name="{stage}", persist_result=False, cache_policy=NO_CACHE)
def run_stage(
    stage: str,
    supervision: Supervision,
    *,
    stop: threading.Event,
    finish: threading.Event | None,
    env: dict[str, str],
) -> None:
    """Keep one stage at work. Its lines become this task run's log; its end is this task run's end."""
    log, follower = get_run_logger(), _follower.get()
    listener = None if follower is None else follower.on_line

    def hear(name: str, line: str) -> None:
        log.info(line)
        if listener is not None:
            listener(name, line)

    try:
        supervision.run(stage, stop, finish=finish, env=env, on_line=hear)
    except BaseException:
        stop.set()
        raise


def _supervise(folder: RunFolder, stages: list[str] | None) -> bool:
    """Run the stages to their end; whether Prefect asked for it. Raises the first failure."""
    stop, finish = threading.Event(), threading.Event()
    document = folder.document()
    tree = load_settings(document).tree
    stopping, rule = StopSection(**tree["stop"]), SupervisionSection(**tree.get("supervision", {}))
    names = stages or stages_of(WorkersSection(**tree.get("workers", {})), num_servers(tree.get("engine", {})))
    # Threads that spin while they wait would take the cores from the other stages.
    waiting = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    env = {"OMP_NUM_THREADS": str(document["threads"]), "OMP_WAIT_POLICY": waiting}
    folder.forget_servers(None if stages is None else [name for name in names if kind_of(name) == SERVER])
    supervisor = Supervisor(folder.url, folder.local / "logs", grace_seconds=stopping.grace_seconds)
    watchdog = Watchdog(
        folder.beats,
        stall_seconds=rule.stall_seconds or stopping.stall_seconds / 2,
        idle_seconds=stopping.stall_seconds,
    )
    supervision = Supervision(supervisor, rule, watchdog=watchdog, on_event=SupervisorEvents(folder))
    with supervisor, watchdog, Watch(folder, stop, names) as watch:
        try:
            futures = {
                run_stage.submit(
                    name, supervision, stop=stop, finish=finish if is_asked(name, names) else None, env=env
                ): name
                for name in names
            }
            _await_stages(futures, stop, finish)
        finally:
            stop.set()
    return watch.cancelled


def num_servers(engine: Mapping[str, Any]) -> int:
    """How many servers of its own the run has."""
    return engine.get("replicas", 1) if engine.get("serve") else 0


def is_asked(name: str, names: Sequence[str]) -> bool:
    """Whether a stage is asked to end when those that it works for have: servers alone on a machine cannot know of them."""
    alone = all(kind_of(other) in OUTLASTING for other in names)
    return kind_of(name) in OUTLASTING and not (kind_of(name) == SERVER and alone)


def _await_stages(futures: dict[PrefectFuture[None], str], stop: threading.Event, finish: threading.Event) -> None:
    """Wait for all; the first failure stops the others and is raised."""
    working, first = {name for name in futures.values() if kind_of(name) not in OUTLASTING}, None
    ending = threading.Timer(ENDING_SECONDS, _stop_stragglers, (working, stop))
    ending.daemon = True
    if not working:
        finish.set()
    for future in as_completed(list(futures)):
        try:
            # Only then is the future's state final.
            future.result()
        except Exception as error:
            first = first or error
            stop.set()
        working.discard(futures[future])
        if futures[future] == LEARNER:
            ending.start()
        if not working:
            finish.set()
    ending.cancel()
    if first is not None:
        raise first


def _stop_stragglers(working: set[str], stop: threading.Event) -> None:
    logger.warning(
        "training ended %.0f s ago and %s did not; stopping", ENDING_SECONDS, ", ".join(working or OUTLASTING)
    )
    stop.set()


def _give_up_on_prefect() -> None:
    """Let Prefect's threads, which at the end of this process send what is left, try once instead of for a minute each."""
    os.environ["PREFECT_CLIENT_MAX_RETRIES"] = "0"
    refresh_global_settings_context()


def _silence_prefect() -> None:
    """Take Prefect's lines off the terminal. They still reach its API."""
    prefect = logging.getLogger("prefect")
    prefect.addHandler(logging.NullHandler())
    prefect.propagate = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What a flow run is to train."""

    settings: Settings
    run: RunFolder | None = None
    """None: a run of these settings, begun or gone on with."""


def _asked(run: str | None, config: str | None, sets: list[str], recipe: str | None, runs_dir: str) -> _Asked:
    if run is not None:
        folder = runs.find(run, runs_dir)
        return _Asked(run=folder, settings=resolve(values=folder.document()["settings"]["tree"], sets=sets))
    assert config is not None, "what is to be trained was checked"
    return _Asked(settings=resolve(Path(config), sets, beneath=beneath(recipe)))


def _run_folder(asked: _Asked, *, resume: bool, amends: bool, trains: bool) -> RunFolder:
    """The run to train. The flow run takes its name, by which a retry finds the run that it began."""
    with get_client(sync_client=True) as client:
        folder = asked.run or resuming.begun(client.read_flow_run(flow_run.id).name, asked.settings)
        if folder is None and resume:
            folder = resuming.newest_run(asked.settings)
        if folder is not None:
            resuming.take_up(folder, asked.settings if amends else None, trains=trains)
        else:
            folder = runs.prepare(asked.settings)
        client.update_flow_run(flow_run.id, name=folder.document()["name"])
    return folder
