"""The process that runs programs, one at a time, each in a child of its own: `python launcher.py none|open`, which stands alone.

It is told a program, its input and, where there is one, a test in Python; never what is expected of the output. So that
whatever a program looks for in its own memory, the right answer is not there. Frames of JSON come over the standard
input and go back over the standard output. It ends with its input.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import json
import linecache
import os
import selectors
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

NAME = "answer.py"
_HEADER = struct.Struct(">Q")
_PIECE_BYTES = 2**16
_LAST_WORDS_BYTES = 2**12
"""How much of a program's standard error is kept: its end."""


def main() -> None:
    """Say what holds here, then run what is asked."""
    asked, told = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    confinement, filtering = _beside("confinement"), _beside("filtering")
    leaves = sys.argv[1] == "none" and confinement.leave_network()
    _tell(told, {"namespace": leaves, "filter": filtering.has_filter(), "folder": confinement.can_keep()})
    woken = _wake_on_end()
    while (job := _hear(asked)) is not None:
        _tell(told, _run(job, woken))


def _run(job: dict[str, Any], woken: int) -> dict[str, Any]:
    """One program in a folder of its own, until it ends, says too much, or has had its time."""
    folder = tempfile.mkdtemp(prefix="program-", dir=job["folder"])
    pipes = {name: os.pipe() for name in ("output", "errors", "verdict")}
    try:
        pid = os.fork()
        if pid == 0:
            _become_program(job, folder, pipes)
        for _, written in pipes.values():
            os.close(written)
        watch = _Watch(pid, {name: readable for name, (readable, _) in pipes.items()}, woken)
        return watch.until(time.monotonic() + job["wall_seconds"], job["output_bytes"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Watch:
    """A running program, and what it has said so far."""

    def __init__(self, pid: int, pipes: dict[str, int], woken: int) -> None:
        self.pid = pid
        self.said = {name: bytearray() for name in pipes}
        self.status: int | None = None
        self.cpu_seconds = 0.0
        self._pipes = pipes
        self._woken = woken
        self._selector = selectors.DefaultSelector()
        for name, pipe in pipes.items():
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, name)
        self._selector.register(woken, selectors.EVENT_READ)

    def until(self, deadline: float, output_bytes: int) -> dict[str, Any]:
        """What became of it. Nothing of it runs on."""
        try:
            stopped = self._wait(deadline, output_bytes)
        finally:
            self._kill()
            for pipe in self._pipes.values():
                os.close(pipe)
            self._selector.close()
        return {
            "stopped": stopped,
            "status": os.waitstatus_to_exitcode(self.status or 0),
            "cpu_seconds": self.cpu_seconds,
            "output": self.said["output"][:output_bytes].decode(errors="replace"),
            "errors": self.said["errors"].decode(errors="replace"),
            "verdict": bytes(self.said["verdict"]) == b"passed",
        }

    def _wait(self, deadline: float, output_bytes: int) -> str | None:
        """Why it has to be stopped; None where it has ended."""
        while not self._has_ended():
            left = deadline - time.monotonic()
            if left <= 0:
                return "time"
            for key, _ in self._selector.select(left):
                self._read(key.fd, key.data)
            if len(self.said["output"]) > output_bytes:
                return "output"
        for name, pipe in self._pipes.items():
            self._read(pipe, name)
        return "output" if len(self.said["output"]) > output_bytes else None

    def _read(self, pipe: int, name: str | None) -> None:
        try:
            data = os.read(pipe, _PIECE_BYTES)
        except BlockingIOError:
            return
        if name is None:
            return
        if not data and pipe in self._selector.get_map():
            self._selector.unregister(pipe)
        kept = self.said[name]
        kept += data
        if name != "output":
            del kept[:-_LAST_WORDS_BYTES]

    def _has_ended(self) -> bool:
        if self.status is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.cpu_seconds = status, usage.ru_utime + usage.ru_stime
        return self.status is not None

    def _kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of its group, or it has not made one yet
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self.status, usage = os.wait4(self.pid, 0)
            self.cpu_seconds = usage.ru_utime + usage.ru_stime


def _become_program(job: dict[str, Any], folder: str, pipes: dict[str, tuple[int, int]]) -> NoReturn:
    """Give everything up, run, and end. Whatever happens, the process ends here."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        verdict = os.dup2(pipes["verdict"][1], 3)
        source = os.open(os.path.join(folder, "input"), os.O_RDWR | os.O_CREAT)
        os.unlink(os.path.join(folder, "input"))
        os.write(source, job["input"].encode())
        os.lseek(source, 0, os.SEEK_SET)
        for number, place in enumerate((source, pipes["output"][1], pipes["errors"][1])):
            os.dup2(place, number)
        os.closerange(4, 1024)
        os.chdir(folder)
        os.environ.update(HOME=folder, TMPDIR=folder)
        _confine(job, folder)
        code = _execute(job, verdict)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _confine(job: dict[str, Any], folder: str) -> None:
    confinement, filtering = sys.modules["confinement"], sys.modules["filtering"]
    keeps, filters = confinement.can_keep(), filtering.has_filter()
    if keeps:
        confinement.keep_to(folder)
    confinement.limit(**job["limits"], can_filter=filters)
    if sys.platform == "linux":
        confinement.drop_privileges()
        confinement.end_with_parent()
    if filters:
        truncation = not keeps or confinement.can_keep_from_truncation()
        filtering.filter_calls(sockets=sys.argv[1] == "open", truncation=truncation)


def _execute(job: dict[str, Any], verdict: int) -> int:
    """The program's exit status. A test speaks for itself once it has run to its end."""
    main_module = types.ModuleType("__main__")
    main_module.__file__ = NAME
    sys.modules["__main__"] = main_module
    sys.argv = [NAME]
    streams = (sys.stdout, sys.stderr)
    program, test = job.pop("program"), job.pop("test")
    linecache.cache[NAME] = (len(program), None, program.splitlines(keepends=True), NAME)
    status = _run_code(program, NAME, main_module)
    if test is not None and status == 0:
        status = _run_code(test, "test", main_module)
        if status == 0:
            os.write(verdict, b"passed")
    if status == 0:
        _wind_up()
    for stream in (sys.stdout, sys.stderr, *streams, *_files_in(main_module)):
        _flush(stream)
    return status


def _wind_up() -> None:
    """What an interpreter does as it ends: wait for threads, then call what is registered for the exit."""
    threads: Any = sys.modules.get("threading")
    exits: Any = atexit
    if threads is not None:
        threads._shutdown()
    exits._run_exitfuncs()


def _files_in(module: types.ModuleType) -> list[Any]:
    """Files that would be flushed as the module's names go."""
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    return [value for value in vars(module).values() if isinstance(value, kinds)]


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (AttributeError, ValueError):
        pass  # the program has put something else there, has closed it, or has taken it apart


def _run_code(text: str, name: str, module: types.ModuleType) -> int:
    try:
        exec(compile(text, name, "exec"), module.__dict__)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        shown = [frame for frame in frames if frame.filename != __file__]
        where = f" ({shown[-1].filename}:{shown[-1].lineno})" if shown else ""
        print(traceback.format_exception_only(error)[-1].strip() + where, file=sys.stderr)
        return 1
    return 0


def _wake_on_end() -> int:
    """A pipe that can be read when a child has ended."""
    readable, written = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(written, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    return readable


def _beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None, "a file beside this one"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hear(pipe: int) -> dict[str, Any] | None:
    header = _exactly(pipe, _HEADER.size)
    return json.loads(_exactly(pipe, _HEADER.unpack(header)[0])) if header else None


def _exactly(pipe: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := os.read(pipe, min(size - len(data), 2**20))):
        data += piece
    return data if len(data) == size else b""


def _tell(pipe: int, record: dict[str, Any]) -> None:
    body = json.dumps(record).encode()
    data = _HEADER.pack(len(body)) + body
    while data:
        data = data[os.write(pipe, data) :]


if __name__ == "__main__":
    main()
