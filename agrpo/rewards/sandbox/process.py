"""The scorer's end of a reward's process, a template or a resident: start it, ask it, log what it prints, end it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from agrpo.errors import RewardError
from agrpo.rewards.sandbox import processes
from agrpo.rewards.sandbox.frames import SETUP, Answer, Frames, Loaded, Setup, frame
from agrpo.rewards.sandbox.limits import Limits

if TYPE_CHECKING:
    from agrpo.config import RewardSection

logger = logging.getLogger(__name__)

IMPORT_SECONDS = 300.0
"""Longest import of a reward's module."""
ANSWER_SLACK_SECONDS = 30.0
"""Beyond a call's own limit, before a template counts as stuck."""
CLOSE_SECONDS = 5.0
LONGEST_LINE = 8192
PIECE_BYTES = 2**18
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Housing:
    """What kind of process a reward lives in."""

    module: str = "agrpo.rewards.sandbox.template"
    """What the process runs."""
    load_seconds: float = IMPORT_SECONDS
    load_setting: str | None = None
    """What sets `load_seconds`."""
    watches_calls: bool = True
    """Whether the process itself ends a call whose time is over, and is given `ANSWER_SLACK_SECONDS` to say so; else it is
    killed with its call, and on closing at once."""
    gpus: str | None = ""
    """Its `CUDA_VISIBLE_DEVICES`; None: all are seen. CUDA does not survive a fork (A-205)."""


TEMPLATE = Housing()


class ProcessDied(Exception):
    """The process ended, or had to be ended, before it answered."""


class ProcessOverdue(ProcessDied):
    """It was killed, since it had not answered in time."""


class RewardProcess:
    """One running process of a reward. All its methods run on one asyncio loop."""

    def __init__(self, section: RewardSection, limits: Limits, housing: Housing) -> None:
        self.section = section
        self.limits = limits
        self.housing = housing
        self.loaded = Loaded()
        self._numbers = itertools.count(SETUP)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._ended = False

    async def start(self) -> Self:
        """Start the process and load the reward in it. Raises `RewardError` if that does not work."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _spawn(theirs, self.housing, repeatable=not self.limits.clock_decides)
        self._log = threading.Thread(target=_log_lines, args=(self.section.name, self._process.stdout), daemon=True)
        self._log.start()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._listener = asyncio.create_task(self._listen())
        try:
            self.loaded = await self._load()
            return self
        except BaseException:
            await self.close()
            raise

    async def ask(self, group: bytes) -> Answer:
        """The answer to one call. Raises `ProcessDied`. A cancelled call is killed."""
        watched, seconds = self.housing.watches_calls, self.limits.wall_seconds
        try:
            body = await self._exchange(group, seconds + ANSWER_SLACK_SECONDS if watched else seconds)
        except ProcessOverdue as overdue:
            if watched:
                raise
            return Answer(failure=str(overdue), overdue=True)
        except asyncio.CancelledError:
            if not watched:
                self._process.kill()
            raise
        try:
            return Answer(**json.loads(body))
        except (ValueError, TypeError):
            return Answer(failure=f"its process answered with {len(body)} bytes that are no answer")

    async def close(self) -> None:
        """End the process and all it started."""
        self._writer.close()
        if not self.housing.watches_calls:
            self._process.kill()  # it may be in a call, and holds nothing that is to be put in order
        try:
            await asyncio.to_thread(self._process.wait, CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        processes.kill_session(self._process.pid)
        await self._listener
        await asyncio.to_thread(self._log.join, CLOSE_SECONDS)

    async def _load(self) -> Loaded:
        setup = Setup(
            name=self.section.name,
            settings=self.section.settings,
            limits=self.limits,
            sys_path=_sys_path(),
            python_path=os.environ.get("PYTHONPATH"),
        )
        try:
            loaded = Loaded(**json.loads(await self._exchange(pickle.dumps(setup), self.housing.load_seconds)))
        except ProcessDied as death:
            setting = self.housing.load_setting if isinstance(death, ProcessOverdue) else None
            raise RewardError(
                f'reward "{self.section.name}" cannot be imported: {death}{f" ({setting})" if setting else ""}; '
                "the log has its output"
            ) from None
        if loaded.problem is not None:
            raise RewardError(loaded.problem)
        return loaded

    async def _exchange(self, body: bytes, seconds: float) -> bytes:
        if self._ended:
            raise ProcessDied(self._cause())
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(frame(number, body))
                await self._writer.drain()
                return await answered
        except TimeoutError:
            self._process.kill()
            raise ProcessOverdue(f"its process did not answer within {seconds:g} s") from None
        except ConnectionError:
            raise ProcessDied(self._cause()) from None
        finally:
            if self._waiting.pop(number, None) is not None and not self._writer.is_closing():
                self._writer.write(frame(number, b""))

    async def _listen(self) -> None:
        """Hand out answers until the process closes its end, then fail the calls it left."""
        frames = Frames()
        try:
            while data := await self._reader.read(PIECE_BYTES):
                for number, body in frames.feed(data):
                    answered = self._waiting.pop(number, None)
                    if answered is not None and not answered.done():
                        answered.set_result(body)
        except ConnectionError:
            pass
        self._ended = True
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ProcessDied(self._cause()))

    def _cause(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its process closed its pipe"
        return (
            f"its process ended with exit status {code}" if code >= 0 else f"its process was killed by signal {-code}"
        )


def _spawn(pipe: socket.socket, housing: Housing, *, repeatable: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_sys_path()), "PYTHONUNBUFFERED": "1"}
    environment.pop(VISIBLE, None)
    if housing.gpus is not None:
        environment[VISIBLE] = housing.gpus
    environment.setdefault("OMP_NUM_THREADS", "1")  # a pool of OpenMP threads does not survive a fork either
    environment.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a log is no terminal
    if repeatable:
        environment["PYTHONHASHSEED"] = "0"
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else sums on a GPU may differ from time to time
    command = [sys.executable, "-P", "-m", housing.module, str(pipe.fileno()), str(os.getpid())]
    return subprocess.Popen(
        command,
        pass_fds=[pipe.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )


def _sys_path() -> list[str]:
    return [entry or os.getcwd() for entry in sys.path]


def _log_lines(name: str, output: IO[bytes] | None) -> None:
    assert output is not None, "the process was started without a pipe for its output"
    with output:
        while line := output.readline(LONGEST_LINE):
            logger.info("%s: %s", name, line.decode(errors="replace").rstrip("\n"))
