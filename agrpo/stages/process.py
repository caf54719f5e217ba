"""Stages as processes: started in groups of their own, waited for, and ended together.

Whatever becomes of the supervisor, nothing it started lives on:

- it ends a stage with SIGTERM, a grace, then SIGKILL, always to the whole group;
- a stage holds the read end of a pipe to its supervisor and kills its group when the pipe ends (`__main__.py`);
- the reaper, a process beside it, kills the groups of a supervisor that died (`reaper.py`): a stopped stage, or one deep
  in a call that holds the interpreter, watches no pipe.
"""

from __future__ import annotations

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
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from agrpo.errors import StageFailed, Stopped
from agrpo.stages.context import new_incarnation
from agrpo.stages.output import LogFile, StageOutput
from agrpo.stages.reaper import Reaper, descendants, end_relatives
from agrpo.stages.report import receive
from agrpo.stages.stage_process import StageProcess, how_ended

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
KILL_SECONDS = 1.5
"""How long a killed process may take to be gone before that is said."""
LOOK_SECONDS = 0.05

OnLine = Callable[[str, str], None]
"""Told the stage's name and each line it prints, in a thread of its own. It must not wait for the stage."""


class Supervisor:
    """Starts and ends the stages of one run. A context manager; on its end every stage has ended.

    Methods may be called from any thread. Entered in the main thread of a process that would die of SIGTERM, it turns
    that signal into `SystemExit(143)`, so that the stages are asked to end before they are killed.
    """

    def __init__(self, run_url: str, log_folder: Path, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self.run_url = run_url
        self.log_folder = log_folder
        self.grace_seconds = grace_seconds
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
        """Start a stage: a name of `KINDS`, or `package.module`. `env` is laid over this process's environment.

        Raises `Stopped` outside of the supervisor's `with` block.
        """
        with self._lock:
            starting = self._starter.submit(self._start, stage, env or {}, on_line) if self._open else None
        if starting is None:
            raise Stopped(f"stage {stage} is not started: its supervisor is not entered, or already ending")
        return starting.result()

    def wait(
        self,
        stage: StageProcess,
        stop: threading.Event | None = None,
        *,
        finish: threading.Event | None = None,
        hung: Callable[[], str | None] | None = None,
    ) -> str | None:
        """Return when the stage has ended well, or was stopped. Raises `StageFailed`.

        Once `stop` is set, the stage is stopped. With `finish` it works until all others have ended: once that is set it is
        asked to end, and takes its time; before that, `stop` does not reach it. Waits without a deadline: a stage has its
        own, and ends with an error that names it. Where one that was not asked to end is `hung`, the wait ends with what
        that says.
        """
        stage.outlasts = finish is not None
        while not stage.ended:
            if stage.undying:
                return None
            if hung is not None and not stage.asked and (verdict := hung()) is not None:
                return verdict
            if finish is not None and finish.is_set():
                self._ask(stage)
            if stop is None or (finish is not None and not finish.is_set()):
                time.sleep(LOOK_SECONDS)
            elif stop.wait(LOOK_SECONDS):
                self.stop(stage)
        self._finish(stage)
        if stage.exit_code == 0 and not stage.gone_unasked:
            return None
        if stage.kill_at is None:
            raise StageFailed(stage.what_happened)
        if stage.report is not None and stage.report.error_type != Stopped.__name__:
            logger.warning("told to stop, but %s", stage.what_happened)
        return None

    def stop(self, stage: StageProcess) -> None:
        """End a stage and all its group: ask, wait `grace_seconds`, kill. Also what outlived a stage that ended by itself."""
        with stage.lock:
            if stage.kill_at is None and not stage.ended:
                stage.kill_at = time.monotonic() + self.grace_seconds
        relatives = descendants({stage.pid})
        self._ask(stage)
        if not stage.await_end(stage.kill_at or 0.0, LOOK_SECONDS / 5):
            with stage.lock:
                if stage.exit_code is None:
                    stage.signal_group(signal.SIGKILL)
        if stage.await_end(time.monotonic() + KILL_SECONDS, LOOK_SECONDS / 5):
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
        """End all stages at once, and then those that outlast the others, each time within `grace_seconds` + 2 s."""
        with self._lock:
            stages = sorted(self._running.values(), key=lambda stage: stage.outlasts)
        for _, together in groupby(stages, key=lambda stage: stage.outlasts):
            ending = list(together)
            with ThreadPoolExecutor(len(ending), thread_name_prefix="stop") as threads:
                list(threads.map(self.stop, ending))

    def _ask(self, stage: StageProcess) -> None:
        """Ask once, however many want it to end: a second SIGTERM would cut the grace short."""
        with stage.lock:
            if not stage.asked and not stage.ended:
                stage.asked = True
                stage.signal_group(signal.SIGTERM)
                stage.signal_group(signal.SIGCONT)

    def _finish(self, stage: StageProcess) -> None:
        """Kill what is left of an ended stage's group, reap it, and read its last words. Once."""
        with stage.lock:
            if stage.exit_code is not None:
                return
            stage.signal_group(signal.SIGKILL)
            self._reaper.forget(stage.pid)
            code = stage.process.wait()
            stage.await_group_gone()
            stage.output.finish()
            stage.report = receive(stage.report_pipe)
            stage.exit_code = code
        with self._lock:
            self._running.pop(stage.pid, None)
        logger.info("%s ended: %s", stage.incarnation, how_ended(code))

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
