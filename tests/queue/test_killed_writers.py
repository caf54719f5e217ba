"""Two competing writers are killed at random moments, fifteen times over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.topic import Topic
from tests.queue.conftest import contents
from tests.queue.store_writer import FILES, origin

ROUNDS = 15
HERE = Path(__file__).parents[2]


class Writer:
    """A writer's process, and what it said so far."""

    def __init__(self, root: Path, number: int, first: int) -> None:
        self.number = number
        self._said = b""
        command = [sys.executable, "-m", "tests.queue.store_writer", str(root), str(number), str(first)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, cwd=HERE)
        os.set_blocking(self._process.stdout.fileno(), False)

    def output(self) -> bytes:
        if not self._process.stdout.closed:
            self._said += self._process.stdout.read() or b""
        return self._said

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.output()
        self._process.stdout.close()


@dataclass
class Ledger:
    """Which writer was told that it published which number, by kind of object."""

    slot: dict[int, int] = field(default_factory=dict)
    folder: dict[int, int] = field(default_factory=dict)

    def note(self, writer: int, output: bytes) -> None:
        for line in output.decode().splitlines():
            kind, number = line.split()
            told = getattr(self, kind)
            assert int(number) not in told, f"{kind} {number} was confirmed to writers {told[int(number)]} and {writer}"
            told[int(number)] = writer


def test_killed_writers_leave_nothing_torn_and_lose_nothing_confirmed(tmp_path: Path):
    moments, first, num_confirmed = random.Random(20), 0, 0
    for turn in range(ROUNDS):
        with ExitStack() as killed:
            writers = [Writer(tmp_path, number, first) for number in (2 * turn, 2 * turn + 1)]
            for writer in writers:
                killed.callback(writer.kill)
            _read_until(tmp_path, first, writers, confirmed=moments.randint(1, 6))
            time.sleep(moments.uniform(0, 0.02))
        slots, folders, ledger = _slots(tmp_path, first), _folders(tmp_path, first), Ledger()
        for writer in writers:
            ledger.note(writer.number, writer.output())
        assert ledger.slot.items() <= slots.items()
        assert ledger.folder.items() <= folders.items()
        assert len(slots) <= len(ledger.slot) + len(writers)
        num_confirmed += len(ledger.slot) + len(ledger.folder)
        first = 1 + max([first, *slots, *folders])
        LocalFilesystem(tmp_path).delete("groups")
        LocalFilesystem(tmp_path).delete("weights")
    assert num_confirmed >= ROUNDS


def _read_until(root: Path, first: int, writers: list[Writer], confirmed: int) -> None:
    """Check everything visible, again and again while it is being written, until so much is confirmed."""
    while sum(writer.output().count(b"\n") for writer in writers) < confirmed:
        _slots(root, first)
        _folders(root, first)
        hint = LocalFilesystem(root).get("hint/learner.json")
        assert hint is None or origin(hint.to_pybytes())


def _slots(root: Path, first: int) -> dict[int, int]:
    """The writer of every visible slot. Raises where one is torn."""
    topic = Topic(LocalFilesystem(root), "groups")
    origins = {number: origin(topic.read(number).to_pybytes()) for number in topic.numbers(first)}
    assert all(number == found for number, (_, found) in origins.items())
    return {number: writer for number, (writer, _) in origins.items()}


def _folders(root: Path, first: int) -> dict[int, int]:
    """The writer of every visible folder. Raises where one lacks a file or mixes two writers."""
    store = LocalFilesystem(root)
    found: dict[int, int] = {}
    for number in (int(name) for name in store.list("weights") if int(name) >= first):
        files = contents(store.local_folder(f"weights/{number}"))
        assert files.keys() == set(FILES)
        assert len(set(files.values())) == 1
        found[number] = origin(files["model"])[0]
    return found
