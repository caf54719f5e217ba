"""Pushing a version into servers: pause all, send to all at once, resume all under the new label.

    join       a group with the workers of every server; again whenever one of them was started anew
    pause      what runs is kept, and goes on under the weights that come
    transfer   start, receive, finish with the label `version@folder`
    resume     only when every server has the weights

Each phase has a deadline. Where one fails nothing half-loaded goes on: a server whose update had begun reads its weights of
before from their folder again, and stays paused where it cannot.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import EngineError
from agrpo.weights.fan import Fan
from agrpo.weights.sender import Sender
from agrpo.weights.servers import FRESH, Server, ServerFailed, Standing

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

ABORT_SECONDS = 10.0
"""How long a transfer that was broken off may take to come to its end."""
BACK_SECONDS = 60.0
"""Longest wait for each call that brings the weights of before back."""
LOOK_SECONDS = 0.25
SLACK_SECONDS = 2.0
"""A call that is late is told by its own deadline, which names the server, before that of its phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Weights as servers know them."""

    number: int
    folder: Path
    """Where they lie, on the learner's and the servers' disks."""

    @property
    def label(self) -> str:
        """What a server is to call them. The folder's name holds their digest."""
        return f"{self.number}@{self.folder.name}"


class PushFailed(EngineError):
    """A version did not reach the servers. `phase`: join, pause, transfer or resume."""

    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase


class Push:
    """Pushes version after version into the servers it is given, over one sender."""

    def __init__(self, sender: Sender, seconds: float, tell: Callable[[str, float], None]) -> None:
        """`seconds`: deadline of each phase. `tell`: hears once a second what is waited for, and for how long."""
        self._sender = sender
        self._seconds = seconds
        self._tell = tell
        self._fan: Fan | None = None
        self._joined: tuple[tuple[str, str], ...] = ()
        """URL and instance of every server in the group."""

    def push(
        self,
        servers: Mapping[Server, Standing],
        weights: Callable[[], Mapping[str, Tensor]],
        version: Version,
        before: Version | None,
    ) -> dict[str, float]:
        """Seconds by phase. Raises `PushFailed`, with what became of every server. `before`: what they served."""
        group = tuple((server.url, standing.instance) for server, standing in servers.items())
        if self._fan is None or self._joined != group:
            self.close()
            self._fan = Fan(list(servers), [standing.num_workers for standing in servers.values()], self._seconds)
        fan, took = self._fan, dict[str, float]()
        fan.forget(version.label)
        try:
            self._phase("join", version, took, lambda: self._join(fan, group), fan)
            self._phase("pause", version, took, lambda: fan.all(lambda server: server.pause(self._seconds)))
            self._phase("transfer", version, took, lambda: self._sender.send(weights()), fan)
            self._phase("resume", version, took, lambda: fan.all(self._resume))
        except PushFailed as failed:
            self.close()
            ends = "; ".join(self._bring_back(fan, failed.phase, before))
            raise PushFailed(f"{failed}; {ends}", failed.phase) from failed.__cause__
        return took

    def close(self) -> None:
        """Leave the group; the next push makes a new one."""
        self._fan, self._joined = None, ()
        self._sender.close()

    def _join(self, fan: Fan, group: tuple[tuple[str, str], ...]) -> None:
        if self._joined == group:
            return
        fan.leave()
        address = fan.servers[0].address_here()
        self._sender.join(fan, address=address, port=_free_port(address), num_workers=fan.num_workers)
        self._joined = group

    def _resume(self, server: Server) -> None:
        """What it has is good, so a call that fails is made once more."""
        try:
            server.resume(self._seconds)
        except ServerFailed as failed:
            logger.warning("%s", failed)
            server.resume(self._seconds)

    def _phase(
        self, name: str, version: Version, took: dict[str, float], work: Callable[[], None], fan: Fan | None = None
    ) -> None:
        """Do the work in a thread; an error says which phase, and of which version. `fan`: ends it where a server fails."""
        task = _Task(name, work)
        while not task.ended.wait(LOOK_SECONDS) and task.seconds < self._seconds + SLACK_SECONDS:
            if fan is not None and fan.failed.is_set():
                break
            self._tell(f"version {version.number} to reach its servers ({name})", task.seconds)
        took[name] = task.seconds
        if task.ended.is_set() and task.error is None:
            return
        if not task.ended.is_set():
            self._sender.close()
            task.ended.wait(ABORT_SECONDS)
        cause = (fan.failure if fan is not None else None) or task.error
        why = (str(cause) or type(cause).__name__) if cause is not None else f"no end within {self._seconds:g} s"
        raise PushFailed(
            f"version {version.number} was not pushed: {name} failed after {took[name]:.1f} s: {why}", name
        ) from cause

    def _bring_back(self, fan: Fan, phase: str, before: Version | None) -> Sequence[str]:
        """What became of each server, a clause each."""
        if phase == "join":
            return ["no server was touched"]
        with ThreadPoolExecutor(len(fan.servers)) as pool:
            return list(pool.map(lambda server: self._back(server, fan, before), fan.servers))

    def _back(self, server: Server, fan: Fan, before: Version | None) -> str:
        seconds = min(self._seconds, BACK_SECONDS)
        try:
            if server in fan.begun and server not in fan.finished:
                if before is None:
                    return f"{server.url} stays paused, and must be started again: no folder of the weights of before is here"
                _close_update(server, seconds)
                server.reload(str(before.folder), seconds)
                server.name(before.label, seconds)
            server.resume(seconds)
            return f"{server.url} serves {server.label(seconds)}"
        except ServerFailed as failed:
            _disown(server, seconds)
            return f"{server.url} must not go on ({failed}): start it again, unless loading from the folder mends it"


class _Task:
    """Work in a thread that may be given up."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self._began = time.monotonic()
        self._work = work
        threading.Thread(target=self._run, name=f"push-{name}", daemon=True).start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error
        self.ended.set()


def _close_update(server: Server, seconds: float) -> None:
    """End an update that is still open, without a label, so that another may begin. One that is not is no error."""
    try:
        server.ask("POST", "/finish_weight_update", {}, seconds)
    except ServerFailed as refused:
        logger.info("%s", refused)


def _disown(server: Server, seconds: float) -> None:
    """Have a server that may not go on call its weights no version, so that the generator loads some before it asks it."""
    try:
        server.name(FRESH, seconds)
    except ServerFailed as failed:
        logger.warning("%s", failed)


def _free_port(address: str) -> int:
    with socket.socket() as taken:
        taken.bind((address, 0))
        return int(taken.getsockname()[1])
