"""The scorer's end of a template: start it, ask it, log what it prints, end it."""

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
from typing import IO, TYPE_CHECKING

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


class TemplateDied(Exception):
    """The template ended, or had to be ended, before it answered."""


class TemplateProcess:
    """One running template. All its methods run on one asyncio loop."""

    def __init__(self, section: RewardSection, limits: Limits) -> None:
        self.section = section
        self.limits = limits
        self.loaded = Loaded()
        self._numbers = itertools.count(SETUP)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._ended = False

    async def start(self) -> TemplateProcess:
        """Start the process and import the reward in it. Raises `RewardError` if that does not work."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _spawn(theirs, repeatable=not self.limits.clock_decides)
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
        """The answer to one call. Raises `TemplateDied`. A cancelled call is killed."""
        body = await self._exchange(group, self.limits.wall_seconds + ANSWER_SLACK_SECONDS)
        try:
            return Answer(**json.loads(body))
        except (ValueError, TypeError):
            return Answer(failure=f"its process answered with {len(body)} bytes that are no answer")

    async def close(self) -> None:
        """End the process and all it started."""
        self._writer.close()
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
            loaded = Loaded(**json.loads(await self._exchange(pickle.dumps(setup), IMPORT_SECONDS)))
        except TemplateDied as death:
            raise RewardError(
                f'reward "{self.section.name}" cannot be imported: {death}; the log has its output'
            ) from None
        if loaded.problem is not None:
            raise RewardError(loaded.problem)
        return loaded

    async def _exchange(self, body: bytes, seconds: float) -> bytes:
        if self._ended:
            raise TemplateDied(self._cause())
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(frame(number, body))
                await self._writer.drain()
                return await answered
        except TimeoutError:
            self._process.kill()
            raise TemplateDied(f"its process did not answer within {seconds:g} s") from None
        except ConnectionError:
            raise TemplateDied(self._cause()) from None
        finally:
            if self._waiting.pop(number, None) is not None and not self._writer.is_closing():
                self._writer.write(frame(number, b""))

    async def _listen(self) -> None:
        """Hand out answers until the template closes its end, then fail the calls it left."""
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
                answered.set_exception(TemplateDied(self._cause()))

    def _cause(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "its process closed its pipe"
        return (
            f"its process ended with exit status {code}" if code >= 0 else f"its process was killed by signal {-code}"
        )


def _spawn(pipe: socket.socket, *, repeatable: bool) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_sys_path()), "PYTHONUNBUFFERED": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # CUDA does not survive a fork
    environment.setdefault("OMP_NUM_THREADS", "1")  # nor does a pool of OpenMP threads
    if repeatable:
        environment["PYTHONHASHSEED"] = "0"
    command = [sys.executable, "-P", "-m", "agrpo.rewards.sandbox.template", str(pipe.fileno()), str(os.getpid())]
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
    assert output is not None, "the template was started without a pipe for its output"
    with output:
        while line := output.readline(LONGEST_LINE):
            logger.info("%s: %s", name, line.decode(errors="replace").rstrip("\n"))
