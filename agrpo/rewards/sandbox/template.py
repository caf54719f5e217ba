"""The process that a reward's calls are forked from: `python -m agrpo.rewards.sandbox.template PIPE PARENT`.

It imports the reward, then only forks, watches and kills. It ends when the scorer closes its end of the pipe or dies,
and takes everything it started with it.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import cast

from agrpo.rewards import Reward, awaits, load_named
from agrpo.rewards.sandbox import child, processes
from agrpo.rewards.sandbox.beginning import PIECE_BYTES, attempt, begin
from agrpo.rewards.sandbox.frames import SETUP, Answer, Frames, Loaded, Setup, frame, to_bytes
from agrpo.rewards.sandbox.limits import Limits


def main() -> None:
    """Load the reward and serve."""
    begun = begin()
    loaded, reward = _load(begun.setup)
    if reward is not None:
        processes.outlive_parent()
        processes.adopt_orphans()
        gc.collect()
        gc.freeze()  # else a collection in a child copies every page it looks at
    begun.channel.sendall(frame(SETUP, to_bytes(loaded)))
    if reward is not None:
        Template(begun.channel, begun.frames, reward, begun.setup.limits).serve()
    sys.stdout.flush()
    os._exit(0)  # threads that a reward's module started would keep it alive


def _load(setup: Setup) -> tuple[Loaded, Reward | None]:
    """What to tell the scorer, and the reward if calls of it are to be served here."""
    reward = attempt(setup.name, lambda: load_named(setup.name, setup.settings))
    if isinstance(reward, Loaded):
        return reward, None
    if awaits(reward):
        return Loaded(is_async=True, whole_group=reward.whole_group), None
    return Loaded(whole_group=reward.whole_group), cast("Reward", reward)


@dataclass(slots=True)
class _Call:
    """A call being judged by the child `pid`, which answers on `pipe`."""

    number: int
    pid: int
    pipe: int
    deadline: float
    frames: Frames = field(default_factory=Frames)


class Template:
    """Forks a child per call, and answers for it if it does not."""

    def __init__(self, channel: socket.socket, frames: Frames, reward: Reward, limits: Limits) -> None:
        self._channel = channel
        self._frames = frames
        self._reward = reward
        self._limits = limits
        self._calls: dict[int, _Call] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._own_children = processes.children()
        """What the reward's module started when it was imported."""

    def serve(self) -> None:
        """Until the scorer closes the pipe."""
        try:
            while self._serve_once():
                pass
        except ConnectionError:
            pass  # the scorer died between two words
        finally:
            self._end_everything()

    def _serve_once(self) -> bool:
        for key, _ in self._selector.select(self._seconds_to_deadline()):
            if key.fileobj is self._channel:
                data = self._channel.recv(PIECE_BYTES)
                if not data:
                    return False
                for number, body in self._frames.feed(data):
                    self._hear(number, body)
            elif key.data in self._calls:
                self._read(self._calls[key.data])
        now = time.monotonic()
        for call in [call for call in self._calls.values() if call.deadline <= now]:
            self._end(call, Answer(failure="it gave no answer in time", overdue=True))
        return True

    def _seconds_to_deadline(self) -> float | None:
        deadlines = [call.deadline for call in self._calls.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _hear(self, number: int, body: bytes) -> None:
        if body:
            self._begin(number, body)
        elif number in self._calls:
            self._end(self._calls[number], None)

    def _begin(self, number: int, body: bytes) -> None:
        readable, writable = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(me, readable)
            child.judge(self._reward, body, self._limits, writable)
        os.close(writable)
        _lead_group(pid)
        call = _Call(number=number, pid=pid, pipe=readable, deadline=time.monotonic() + self._limits.wall_seconds)
        self._calls[number] = call
        self._selector.register(readable, selectors.EVENT_READ, number)

    def _become_child(self, parent: int, readable: int) -> None:
        """Leave nothing of the template open to what a reward runs, and die with it."""
        try:
            _lead_group(0)
            processes.die_with(parent)
            self._selector.close()
            self._channel.close()
            for pipe in [readable, *(call.pipe for call in self._calls.values())]:
                os.close(pipe)
        except BaseException:
            os._exit(1)

    def _read(self, call: _Call) -> None:
        data = os.read(call.pipe, PIECE_BYTES)
        if not data:
            self._end(call, None, died=True)
            return
        for _, body in call.frames.feed(data):
            self._end(call, body)
            return

    def _end(self, call: _Call, answer: Answer | bytes | None, *, died: bool = False) -> None:
        """Kill what is left of the call and tell its answer; None tells nothing unless the child died."""
        del self._calls[call.number]
        self._selector.unregister(call.pipe)
        os.close(call.pipe)
        processes.kill_group(call.pid)
        _, status, usage = os.wait4(call.pid, 0)
        self._kill_orphans()
        if died:
            seconds = usage.ru_utime + usage.ru_stime
            answer = Answer(failure=self._cause_of_death(os.waitstatus_to_exitcode(status), seconds))
        if answer is not None:
            body = answer if isinstance(answer, bytes) else to_bytes(answer)
            self._channel.sendall(frame(call.number, body))

    def _cause_of_death(self, code: int, cpu_seconds: float) -> str:
        if code == -signal.SIGXCPU or (code < 0 and cpu_seconds >= self._limits.cpu_seconds):
            return f"it used more than {self._limits.cpu_seconds} s of processor time (rewards.timeout_seconds)"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name} before it answered"
        return f"its process ended with exit status {code} before it answered"

    def _kill_orphans(self) -> None:
        """Kill adopted processes that no running call's group holds: what a call leaves behind in a session of its own."""
        running = {call.pid for call in self._calls.values()}
        while orphans := [
            pid for pid in processes.children() - self._own_children - running if _group_of(pid) not in running
        ]:
            _kill(orphans)

    def _end_everything(self) -> None:
        for call in self._calls.values():
            processes.kill_group(call.pid)
        while left := processes.children():
            _kill(list(left))


def _kill(pids: list[int]) -> None:
    """Kill these children, wait for them, and so adopt theirs."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _lead_group(pid: int) -> None:
    """Parent and child both do it, so that the group exists whoever comes first."""
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        pass  # the child has done it and ended


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


if __name__ == "__main__":
    main()
