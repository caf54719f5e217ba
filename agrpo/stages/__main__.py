"""Run one stage as this process: `python -m agrpo.stages NAME RUN_URL`.

Ends with 0 when the stage has finished, or was asked to end, which it reports to its supervisor; else with 1 and a last
line `error: Type: message`. SIGTERM asks the stage to end, a second one ends it. SIGINT is ignored: the supervisor
decides. Without its supervisor a stage does not live on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import importlib
import logging
import os
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec

from agrpo.errors import AgrpoError, Stopped, UnknownName
from agrpo.log_line import write_logs_to
from agrpo.stages import KINDS, kind_of, report, whereabouts
from agrpo.stages.context import StageContext, new_incarnation
from agrpo.stages.reaper import descendants, end_relatives

logger = logging.getLogger("agrpo.stages")

LINGER_SECONDS = 3.0
"""How long threads that a finished stage has left running may hold up its end."""


def main(arguments: list[str] | None = None) -> int:
    """Run the stage named on the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m agrpo.stages", description="Run one stage of a run.")
    parser.add_argument(
        "name", help=f"one of {', '.join(KINDS)}, a further worker (scorer-2), or a dotted module with run(context)"
    )
    parser.add_argument("run_url", help="folder or URL of the run")
    options = parser.parse_args(arguments)
    _configure_logging()
    context = StageContext(
        run_url=options.run_url,
        stage=options.name,
        incarnation=os.environ.pop("AGRPO_INCARNATION", "") or new_incarnation(options.name),
        stop=threading.Event(),
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    pipe = _inherited("AGRPO_REPORT_FD")
    _Watcher(context.stop, _inherited("AGRPO_SUPERVISOR_FD")).start()
    code = _run(context, pipe)
    end_relatives(descendants({os.getpid()}))  # what a tool or an environment has started and left
    threading.Thread(target=_end_lingering, args=(code,), name="end", daemon=True).start()
    return code


def _run(context: StageContext, pipe: int | None) -> int:
    try:
        _run_of(context.stage)(context)
    except Stopped as stopped:
        return _as_asked(context, stopped, pipe) if context.stop.is_set() else _failed(stopped, pipe)
    except (Exception, SystemExit) as error:
        return _failed(error, pipe)
    if context.stop.is_set():
        return _as_asked(context, Stopped("its work is in order"), pipe)
    logger.info("%s has finished", context.incarnation)
    return 0


def _as_asked(context: StageContext, stopped: Stopped, pipe: int | None) -> int:
    """Tell it from the end of the work: whoever did not ask starts the stage again."""
    logger.info("%s ends as asked: %s", context.incarnation, stopped)
    if pipe is not None:
        report.send(report.ErrorReport.of(stopped), pipe)
    return 0


def _run_of(name: str) -> Callable[[StageContext], None]:
    kind = kind_of(name)
    module = name if "." in name else f"agrpo.stages.{kind}"
    if "." not in name and (not kind.isidentifier() or find_spec(module) is None):
        raise UnknownName(f'no stage "{name}"; expected {", ".join(KINDS)}, or "package.module" for one of yours')
    stage = importlib.import_module(module)
    run = getattr(stage, "run", None)
    if run is None:
        raise UnknownName(f"{module} is no stage; it needs run(context: StageContext) -> None")
    if not getattr(stage, "SEES_GPUS", True):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # CUDA reads it when it is first used
    return run


def _failed(error: BaseException, pipe: int | None) -> int:
    """Say why, last to the log and first to the supervisor. A traceback helps only with what nobody raised on purpose."""
    if not isinstance(error, AgrpoError):
        traceback.print_exception(error)
    told = report.ErrorReport.of(error)
    if pipe is not None:
        report.send(told, pipe)
    print(f"error: {told}", flush=True)
    return 1


def _configure_logging() -> None:
    write_logs_to(sys.stdout)
    faulthandler.enable()
    whereabouts.tell_when_asked()


def _inherited(variable: str) -> int | None:
    """A pipe end the supervisor gave. The variable is removed and the pipe closed to the stage's own children."""
    value = os.environ.pop(variable, None)
    if value is None:
        return None
    os.set_inheritable(int(value), False)
    return int(value)


def _end_lingering(code: int) -> None:
    time.sleep(LINGER_SECONDS)
    left = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    logger.warning("ended with threads still running: %s; end them before run() returns", ", ".join(left) or "none")
    sys.stdout.flush()
    os._exit(code)


class _Watcher(threading.Thread):
    """Hears signals and the end of the supervisor while the main thread computes.

    Python runs a signal handler only between two instructions of the main thread, which can be a whole backward pass
    later. The byte that the interpreter writes to the wake-up pipe comes at once, and an `Event` set in a handler could
    meet its own lock, held by the wait it interrupted.
    """

    def __init__(self, stop: threading.Event, supervisor: int | None) -> None:
        super().__init__(name="watcher", daemon=True)
        self._stop_event = stop
        self._supervisor = supervisor
        self._parent = int(os.environ.pop("AGRPO_SUPERVISOR_PID", os.getppid()))
        self._signals, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The supervisor has it wait while a stage starts.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if supervisor is not None:
            _die_with_parent()

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            if self._supervisor is not None:
                selector.register(self._supervisor, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(1.0)}
                if self._signals in ready:
                    self._hear(os.read(self._signals, 64))
                if self._supervisor is not None and (self._supervisor in ready or os.getppid() != self._parent):
                    _end_group()

    def _hear(self, numbers: bytes) -> None:
        for _ in range(numbers.count(signal.SIGTERM)):
            if self._stop_event.is_set():
                os._exit(143)
            self._stop_event.set()


def _end_group() -> None:
    """Nobody is left to work for: kill this process and every child in its group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _die_with_parent() -> None:
    """On Linux the kernel kills this process when the thread that started it ends."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # a C library without prctl
            set_parent_death_signal = 1
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
