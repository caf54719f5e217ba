"""Stages as processes: started in groups of their own, watched, and ended together.

Whatever becomes of the supervisor, nothing it started lives on:

- it ends a stage with SIGTERM, a grace, then SIGKILL, always to the whole group;
- a stage holds the read end of a pipe to its supervisor and kills its group when the pipe ends (`__main__.py`);
- the reaper, a process beside it, kills the groups of a supervisor that died (`reaper.py`): a stopped stage, or one deep
  in a call that holds the interpreter, watches no pipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import site
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

from agrpo.errors import StageFailed, Stopped
from agrpo.stages.context import new_incarnation
from agrpo.stages.output import LogFile, StageOutput
from agrpo.stages.reaper import Reaper, descendants, end_relatives
from agrpo.stages.report import ErrorReport, receive

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
KILL_SECONDS = 1.5
"""How long a killed process may take to be gone before that is said."""
LOOK_SECONDS = 0.05

OnLine = Callable[[str, str], None]
"""Told the stage's name and each line it prints, in a thread of its own. It must not wait for the stage."""
OnEvent = Callable[[str, dict[str, Any]], None]
"""Told what becomes of the stages that `run` watches, in the thread that watches: `stage_started`, `stage_restarted` or
`stage_failed`, with `stage`, `incarnation`, `pid`, and for the latter two the `reason`. It must not raise."""


@dataclass(kw_only=True, eq=False, slots=True)
class StageProcess:
    """One running stage. Its supervisor alone changes it."""

    name: str
    incarnation: str
    pid: int
    """Of the process, and of its group."""
    log_path: Path
    exit_code: int | None = None
    """Once it has ended; below 0: minus the signal that ended it."""
    report: ErrorReport | None = None
    """The error it said it ended with."""
    output: StageOutput
    process: subprocess.Popen[bytes]
    report_pipe: IO[bytes]
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: bool = False
    """SIGTERM was sent to it."""
    kill_at: float | None = None
    """It was told to stop while it ran, and is killed at this time of the monotonic clock."""
    undying: bool = False
    """It outlived SIGKILL, in a call into the kernel that cannot be broken off."""


class Supervisor:
    """Starts, watches and ends the stages of one run. A context manager; on its end every stage has ended.

    Methods may be called from any thread. Entered in the main thread of a process that would die of SIGTERM, it turns
    that signal into `SystemExit(143)`, so that the stages are asked to end before they are killed.
    """

    def __init__(
        self,
        run_url: str,
        log_folder: Path,
        *,
        grace_seconds: float = GRACE_SECONDS,
        on_event: OnEvent | None = None,
    ) -> None:
        self.run_url = run_url
        self.log_folder = log_folder
        self.grace_seconds = grace_seconds
        self._on_event = on_event
        self._running: dict[int, StageProcess] = {}
        self._lock = threading.Lock()
        self._open = False

    def __enter__(self) -> Self:
        self.log_folder.mkdir(parents=True, exist_ok=True)
        self._pipe = os.pipe()
        # The kernel kills a stage when the *thread* that started it ends: this one lives as long as the supervisor. Its
        # children inherit that SIGTERM waits, until they can hear it.
        self._starter = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="starter",
            initializer=signal.pthread_sigmask,
            initargs=(signal.SIG_BLOCK, {signal.SIGTERM}),
        )
        self._reaper = Reaper()
        self._former_handler = _exit_on_sigterm()
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            with self._lock:
                self._open = False
            self.stop_all()
        finally:
            self._starter.shutdown()
            self._reaper.close()
            for end in self._pipe:
                os.close(end)
            if self._former_handler is not None:
                signal.signal(signal.SIGTERM, self._former_handler)

    def start(self, stage: str, env: Mapping[str, str] | None = None, on_line: OnLine | None = None) -> StageProcess:
        """Start a stage: a name of `STAGES`, or `package.module`. `env` is laid over this process's environment.

        Raises `Stopped` outside of the supervisor's `with` block.
        """
        with self._lock:
            starting = self._starter.submit(self._start, stage, env or {}, on_line) if self._open else None
        if starting is None:
            raise Stopped(f"stage {stage} is not started: its supervisor is not entered, or already ending")
        return starting.result()

    def wait(
        self, stage: StageProcess, stop: threading.Event | None = None, *, finish: threading.Event | None = None
    ) -> None:
        """Return when the stage has ended well, or was stopped. Raises `StageFailed`.

        Once `stop` is set, the stage is stopped. Once `finish` is set, it is asked to end as well, and takes its time:
        for a stage that works until all others have ended. Waits without a deadline: a stage has its own, and ends with
        an error that names it.
        """
        while not self._ended(stage):
            if stage.undying:
                return
            if finish is not None and finish.is_set():
                self._ask(stage)
            if stop is None:
                time.sleep(LOOK_SECONDS)
            elif stop.wait(LOOK_SECONDS):
                self.stop(stage)
        self._finish(stage)
        if stage.exit_code == 0:
            return
        if stage.kill_at is None:
            raise StageFailed(_what_happened(stage))
        if stage.report is not None:
            logger.warning("told to stop, but %s", _what_happened(stage))

    def run(
        self,
        stage: str,
        stop: threading.Event | None = None,
        *,
        finish: threading.Event | None = None,
        restarts: int = 0,
        env: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        """Start a stage and `wait` for it. One that dies is started again, up to `restarts` times.

        A death is an end without a word, such as SIGKILL by the kernel's memory guard. A stage that reports an error is
        not started again: it would meet it again.
        """
        death: StageFailed | None = None
        for deaths in range(restarts + 1):
            started = self.start(stage, env, on_line)
            self._tell("stage_started" if death is None else "stage_restarted", started, death)
            try:
                self.wait(started, stop, finish=finish)
            except StageFailed as failure:
                death = failure
                if started.report is not None or deaths == restarts:
                    self._tell("stage_failed", started, failure)
                    raise
                logger.warning("%s; starting it again, restart %d of %d", failure, deaths + 1, restarts)
            else:
                return

    def stop(self, stage: StageProcess) -> None:
        """End a stage and all its group: ask, wait `grace_seconds`, kill. Also what outlived a stage that ended by itself."""
        with stage.lock:
            if stage.kill_at is None and not self._ended(stage):
                stage.kill_at = time.monotonic() + self.grace_seconds
        relatives = descendants({stage.pid})
        self._ask(stage)
        if not self._await_end(stage, stage.kill_at or 0.0):
            with stage.lock:
                if stage.exit_code is None:
                    _signal_group(stage.pid, signal.SIGKILL)
        if self._await_end(stage, time.monotonic() + KILL_SECONDS):
            self._finish(stage)
            end_relatives(relatives)
            return
        stage.undying = True
        logger.error(
            "%s (process %d) was killed and is not gone: a call into the kernel holds it, often a device's driver or a "
            "network disk; wait for its end before the run is started again",
            stage.incarnation,
            stage.pid,
        )

    def stop_all(self) -> None:
        """End all stages at once, within `grace_seconds` + 2 s."""
        with self._lock:
            stages = list(self._running.values())
        if stages:
            with ThreadPoolExecutor(len(stages), thread_name_prefix="stop") as threads:
                list(threads.map(self.stop, stages))

    def _tell(self, kind: str, stage: StageProcess, reason: StageFailed | None) -> None:
        if self._on_event is not None:
            why = {} if reason is None else {"reason": str(reason)}
            self._on_event(kind, {"stage": stage.name, "incarnation": stage.incarnation, "pid": stage.pid, **why})

    def _ask(self, stage: StageProcess) -> None:
        """Ask once, however many want it to end: a second SIGTERM would cut the grace short."""
        with stage.lock:
            if not stage.asked and not self._ended(stage):
                stage.asked = True
                _signal_group(stage.pid, signal.SIGTERM)
                _signal_group(stage.pid, signal.SIGCONT)

    def _await_end(self, stage: StageProcess, deadline: float) -> bool:
        while not self._ended(stage):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS / 5)
        return True

    @staticmethod
    def _ended(stage: StageProcess) -> bool:
        """Whether the process has ended. It is not reaped yet, so that its group's number is not given to others."""
        if stage.exit_code is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return stage.process.poll() is not None
        try:
            return os.waitid(os.P_PID, stage.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _finish(self, stage: StageProcess) -> None:
        """Kill what is left of an ended stage's group, reap it, and read its last words. Once."""
        with stage.lock:
            if stage.exit_code is not None:
                return
            _signal_group(stage.pid, signal.SIGKILL)
            self._reaper.forget(stage.pid)
            code = stage.process.wait()
            _await_group_gone(stage.pid)
            stage.output.finish()
            stage.report = receive(stage.report_pipe)
            stage.exit_code = code
        with self._lock:
            self._running.pop(stage.pid, None)
        logger.info("%s ended: %s", stage.incarnation, _how(code))

    def _start(self, stage: str, env: Mapping[str, str], on_line: OnLine | None) -> StageProcess:
        """Runs in the starter's thread, under the lock, so that whoever ends all stages finds this one too."""
        incarnation = new_incarnation(stage)
        with self._lock:
            if not self._open:
                raise Stopped(f"stage {stage} is not started: its supervisor is ending")
            log = LogFile(self.log_folder / f"{incarnation}.log")
            read_end, write_end = os.pipe()
            report_pipe = os.fdopen(read_end, "rb", buffering=0)
            with os.fdopen(write_end, "wb", buffering=0):
                process = self._popen(stage, env, {"AGRPO_INCARNATION": incarnation, "AGRPO_REPORT_FD": str(write_end)})
            self._reaper.remember(process.pid)
            assert process.stdout is not None
            hear = None if on_line is None else lambda line: on_line(stage, line)
            started = StageProcess(
                name=stage,
                incarnation=incarnation,
                pid=process.pid,
                log_path=log.path,
                output=StageOutput(process.stdout, log, hear),
                process=process,
                report_pipe=report_pipe,
            )
            self._running[process.pid] = started
        logger.info("%s started as process %d, log %s", incarnation, process.pid, log.path)
        return started

    def _popen(self, stage: str, env: Mapping[str, str], own: Mapping[str, str]) -> subprocess.Popen[bytes]:
        supervisor = {"AGRPO_SUPERVISOR_PID": str(os.getpid()), "AGRPO_SUPERVISOR_FD": str(self._pipe[0])}
        python = {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "agrpo.stages", stage, self.run_url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env={**os.environ, **python, **env, **supervisor, **own},
            pass_fds=(self._pipe[0], int(own["AGRPO_REPORT_FD"])),
            start_new_session=True,
        )


def python_path() -> str:
    """This process's `sys.path` for a child's PYTHONPATH, without what every interpreter finds by itself."""
    paths = sysconfig.get_paths()
    found = {paths["stdlib"], paths["platstdlib"], sysconfig.get_config_var("DESTSHARED")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    entries = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return os.pathsep.join(entry for entry in entries if entry not in found and os.path.exists(entry))


def _what_happened(stage: StageProcess) -> str:
    assert stage.exit_code is not None
    if stage.report is not None:
        why = str(stage.report)
    else:
        why = "last output: " + (" | ".join(stage.output.last_lines(3)) or "none")
    return f"stage {stage.name} {_how(stage.exit_code)}: {why} (all it printed: {stage.log_path})"


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _signal_group(group: int, number: signal.Signals) -> None:
    # macOS refuses a group whose processes are all dead; elsewhere a group of nobody is not found.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _await_group_gone(group: int) -> None:
    """What was killed beside the stage is somebody else's to reap; a rerun that needs its port should find it gone."""
    deadline = time.monotonic() + 0.5
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.005)


def _exit_on_sigterm() -> Callable[[int, FrameType | None], object] | int | None:
    """Take over SIGTERM where nobody has; what to put back, or None."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return None

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signal.signal(signal.SIGTERM, leave)
