"""The reward's end of a launcher: start it, have programs run, end it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agrpo.errors import RewardError
from agrpo.rewards.programs.cases import Case, same_output

Network = Literal["none", "open"]

START_SECONDS = 30.0
ANSWER_SLACK_SECONDS = 10.0
"""Beyond a program's own limit, before its launcher counts as stuck."""
FORGOTTEN_SECONDS = 24 * 3600.0
"""Age at which a folder is taken for one that a killed call left."""
_LAUNCHER = Path(__file__).with_name("launcher.py")
_FOLDER = "agrpo-programs-"
_HEADER = struct.Struct(">Q")
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one program may take."""

    cpu_seconds: int
    """Whole seconds, for the system counts no finer."""
    wall_seconds: float
    memory_bytes: int
    """Of address space, the interpreter included."""
    output_bytes: int
    file_bytes: int
    """Of any one file that it writes."""
    network: Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What this system has to confine programs with."""

    namespace: bool
    """A network of their own that leads nowhere."""
    filter: bool
    """System calls that are refused: sockets, other processes, memory that stays, modes and owners of files."""
    folder: bool
    """Files that are out of reach but for their own folder, the interpreter and the system's libraries."""

    def refusal(self, network: Network) -> str | None:
        """Why programs may not run here; None where they may."""
        if network == "open" or self.namespace or self.filter:
            return None
        return (
            "this system cannot take the network away from a program: it has neither network namespaces for its users nor "
            "a filter of system calls that is known here (Linux on x86_64 or aarch64). Score on one that has, or set "
            'network = "open" and trust what the policy writes'
        )

    @property
    def lacking(self) -> list[str]:
        """What a program can do here that it could not elsewhere."""
        lacks = {
            "start and signal processes, leave memory taken, change modes of files (no filter of system calls)": not self.filter,
            "read and write the files of its user (no Landlock)": not self.folder,
        }
        return [what for what, lacked in lacks.items() if lacked]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended."""

    stopped: Literal["time", "output", "launcher"] | None
    """What it had too much of, or took along. None: it ended by itself, or a limit of the system ended it."""
    status: int
    """Its exit status; below zero, the signal that killed it."""
    cpu_seconds: float
    output: str
    errors: str
    """The end of its standard error."""
    verdict: bool
    """Whether the test behind it ran to its end."""

    def failure(self, case: Case, bounds: Bounds) -> str | None:
        """Why the case is not passed, in one line; None where it is."""
        return self._violation(bounds) or self._mistake(case)

    def exhausts(self, bounds: Bounds) -> bool:
        """Whether it had all the time of a case, or cost the launcher: what it may do once, it is not asked again."""
        return self.stopped in ("time", "launcher") or self._used_its_processor_time(bounds)

    def _used_its_processor_time(self, bounds: Bounds) -> bool:
        return self.status == -signal.SIGXCPU or (self.status < 0 and self.cpu_seconds >= bounds.cpu_seconds)

    def _violation(self, bounds: Bounds) -> str | None:
        if self.stopped == "launcher":
            return f"the process that runs programs was lost with it: {self.errors}"
        if self.stopped == "time":
            return f"it did not end within {bounds.wall_seconds:g} s (wall_seconds)"
        if self.stopped == "output":
            return f"it printed more than {bounds.output_bytes} bytes (output_bytes)"
        if self._used_its_processor_time(bounds):
            return f"it used more than {bounds.cpu_seconds} s of processor time (cpu_seconds)"
        if self.status < 0:
            return f"it was killed by {signal.Signals(-self.status).name}"
        return None

    def _mistake(self, case: Case) -> str | None:
        if self.status != 0:
            said = self.errors.strip().splitlines()
            return said[-1][:200] if said else f"it ended with exit status {self.status}"
        if case.test is not None and not self.verdict:
            return "it ended before its test did"
        if case.output is not None and not same_output(self.output, case.output):
            return f"it printed {_shown(self.output)}, expected {_shown(case.output)}"
        return None


class _Lost(Exception):
    """A launcher that has ended, or says nothing."""


class Launcher:
    """A running launcher. One that is lost with a program is followed by another."""

    means: Means

    def __init__(self, folder: str, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of its process; None where the last was lost."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Raises `RewardError` where it does not say in time what holds here."""
        command = [sys.executable, "-P", "-s", "-B", str(_LAUNCHER), self._bounds.network]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=self._folder,
            env=_environment(self._folder),
        )
        try:
            self.means = Means(**_heard(self._process, START_SECONDS))
        except _Lost as lost:
            raise RewardError(f"the process that runs programs did not start: {lost}") from None

    def end(self) -> None:
        """Kill it, and the program that it runs."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def run(self, program: str, case: Case) -> Ran:
        """Run the program against a case. Raises `RewardError` where no launcher can be had."""
        if self._process is None or self._process.poll() is not None:
            self.end()
            self.start()
        assert self._process is not None, "it was started"
        bounds = self._bounds
        limits = {name: getattr(bounds, name) for name in ("cpu_seconds", "memory_bytes", "file_bytes")}
        job = {
            "program": program, "input": case.input, "test": case.test, "folder": self._folder, "limits": limits,
            "wall_seconds": bounds.wall_seconds, "output_bytes": bounds.output_bytes,
        }  # fmt: skip
        try:
            _tell(self._process, job)
            return Ran(**_heard(self._process, bounds.wall_seconds + ANSWER_SLACK_SECONDS))
        except _Lost as lost:
            self.end()
            return Ran(stopped="launcher", status=0, cpu_seconds=0.0, output="", errors=str(lost), verdict=False)


@contextmanager
def launched(bounds: Bounds) -> Generator[Launcher, None, None]:
    """A launcher for one call, ended with it. Raises `RewardError`."""
    _sweep()
    folder = tempfile.mkdtemp(prefix=_FOLDER)
    launcher = Launcher(folder, bounds)
    try:
        launcher.start()
        yield launcher
    finally:
        launcher.end()
        shutil.rmtree(folder, ignore_errors=True)


def _tell(process: subprocess.Popen[bytes], job: dict[str, Any]) -> None:
    assert process.stdin is not None, "the launcher was started with a pipe"
    body = json.dumps(job).encode()
    data = memoryview(_HEADER.pack(len(body)) + body)
    try:
        while data:
            data = data[process.stdin.write(data) :]
    except BrokenPipeError:
        raise _Lost(_end_of(process)) from None


def _heard(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    (length,) = _HEADER.unpack(_exactly(process, _HEADER.size, deadline))
    return json.loads(_exactly(process, length, deadline))


def _exactly(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert process.stdout is not None, "the launcher was started with a pipe"
    pipe, data = process.stdout.fileno(), b""
    while len(data) < size:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise _Lost("it gave no answer in time, and is ended")
        piece = os.read(pipe, size - len(data))
        if not piece:
            raise _Lost(_end_of(process))
        data += piece
    return data


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "it closed its pipe"
    return f"it ended with status {status}"


def _environment(folder: str) -> dict[str, str]:
    """What a program may know of this one's: nothing, so that no key of a service is among it."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": folder,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
    }


def _sweep() -> None:
    """Remove folders of calls that were killed before they could."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        try:
            found = left.stat()
        except OSError:
            continue
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > FORGOTTEN_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
