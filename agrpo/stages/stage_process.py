"""One stage as a process: what its supervisor knows of it, whether it has ended, and how."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from agrpo.stages.output import StageOutput
from agrpo.stages.report import ErrorReport


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
    """The error it said it ended with. With exit code 0: it ended because it was asked to."""
    output: StageOutput
    process: subprocess.Popen[bytes]
    report_pipe: IO[bytes]
    started_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: bool = False
    """SIGTERM was sent to it."""
    kill_at: float | None = None
    """It was told to stop while it ran, and is killed at this time of the monotonic clock."""
    outlasts: bool = False
    """It works until all others have ended, and is stopped after them."""
    undying: bool = False
    """It outlived SIGKILL, in a call into the kernel that cannot be broken off."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended. It may not be reaped yet, so that its group's number is not given to others."""
        if self.exit_code is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    @property
    def gone_unasked(self) -> bool:
        """It ended as asked, and its supervisor did not ask: somebody else's SIGTERM."""
        return self.exit_code == 0 and self.report is not None and not self.asked

    def await_end(self, deadline: float, look_seconds: float) -> bool:
        """Whether it ends before this time of the monotonic clock."""
        while not self.ended:
            if time.monotonic() > deadline:
                return False
            time.sleep(look_seconds)
        return True

    def signal_group(self, number: signal.Signals) -> None:
        # macOS refuses a group whose processes are all dead; elsewhere a group of nobody is not found.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def await_group_gone(self) -> None:
        """What was killed beside the stage is somebody else's to reap; a rerun that needs its port should find it gone."""
        deadline = time.monotonic() + 0.5
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(0.005)

    @property
    def what_happened(self) -> str:
        """One line on how it ended, with its own last words."""
        assert self.exit_code is not None, "asked of a stage that has ended"
        end = how_ended(self.exit_code)
        if self.gone_unasked:
            why = "somebody else than its supervisor sent it SIGTERM"
        elif self.report is not None:
            why = str(self.report)
            end = "failed" if self.exit_code < 0 else end  # a signal met what was already ending
        else:
            why = "last output: " + (" | ".join(self.output.last_lines(3)) or "none")
        return f"stage {self.name} {end}: {why} (all it printed: {self.log_path})"


def how_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
