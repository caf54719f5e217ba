"""The run folder: every durable object of a run under its name, read and written as records.

run.json                                 the resolved settings, seeds and digests; written first
attempts/{a}.json  bases/{a}.json        incarnations of the learner, and where their histories join
claims/{ticket}.{try}.json               who generates which group
groups/{ticket}.arrow                    rollouts, with tokens
scored/{ticket}.arrow                    scores and marks, without tokens
steps/{a}/{k}.plan.json  {k}.done.json   the write-ahead log, and what was seen of the trained tokens
                {k}.tokens.arrow
weights/{v}-{digest}/                    published weights; a version document names them
versions/{a}/{v}.json  acks/{engine}/{v}.json
checkpoints/{k}-{a}/
events/{stream}/{n}.json
hint/run_ahead.json  beat/{stage}.json   overwritten, may be stale, never decide anything
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agrpo.errors import RunExists, RunNotFound
from agrpo.queue.claims import Claims
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.topic import Topic
from agrpo.records.progress import (
    Acknowledgement,
    Attempt,
    Base,
    Done,
    Event,
    Hint,
    Plan,
    WeightsReady,
    dump,
    load,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepKey:
    """One step of one attempt."""

    attempt: int
    step: int


class RunFolder:
    """One run's durable objects. Thread-safe, as its filesystem is."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.url = filesystem.url
        self.groups = Topic(filesystem, "groups")
        self.scored = Topic(filesystem, "scored")
        self.claims = Claims(filesystem)

    @classmethod
    def create(cls, url: str, document: dict[str, Any]) -> RunFolder:
        """Begin a run. Raises `RunExists` where one is, whatever its state."""
        folder = cls(open_filesystem(url))
        if not folder.filesystem.put("run.json", json.dumps(document, indent=1, ensure_ascii=False).encode()):
            raise RunExists(
                f"{url} already holds a run; resume it with `agrpo resume {url}`, or start another one under a new run.name"
            )
        return folder

    @classmethod
    def open(cls, url: str) -> RunFolder:
        """An existing run. Raises `RunNotFound`."""
        folder = cls(open_filesystem(url))
        if folder.filesystem.get("run.json") is None:
            raise RunNotFound(f"{url} holds no run (no run.json); `agrpo runs` lists the runs of a folder")
        return folder

    def document(self) -> dict[str, Any]:
        """`run.json`."""
        data = self.filesystem.get("run.json")
        assert data is not None, "run.json is written before anything else"
        return json.loads(bytes(data))

    @property
    def local(self) -> Path:
        """A local folder of this run for logs, plots and the database; the run folder itself where it is local."""
        if "://" not in self.url:
            return Path(self.url)
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        folder = cache / "agrpo" / self.url.replace("://", "/").strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def database(self) -> Path:
        return self.local / "run.duckdb"

    # ---- attempts and bases

    def attempts(self) -> list[int]:
        return self._numbers("attempts")

    def write_attempt(self, attempt: Attempt) -> bool:
        return self._write(f"attempts/{attempt.attempt:06d}.json", attempt)

    def bases(self) -> dict[int, Base]:
        found = {number: self._read(Base, f"bases/{number:06d}.json") for number in self._numbers("bases")}
        return {number: base for number, base in found.items() if base is not None}

    def write_base(self, base: Base) -> bool:
        return self._write(f"bases/{base.attempt:06d}.json", base)

    # ---- steps

    def plan(self, key: StepKey) -> Plan | None:
        return self._read(Plan, _step_path(key, "plan"))

    def write_plan(self, plan: Plan) -> bool:
        return self._write(_step_path(StepKey(plan.attempt, plan.step), "plan"), plan)

    def done(self, key: StepKey) -> Done | None:
        return self._read(Done, _step_path(key, "done"))

    def write_done(self, done: Done) -> bool:
        return self._write(_step_path(StepKey(done.attempt, done.step), "done"), done)

    def tokens(self, key: StepKey) -> pa.Buffer | None:
        """What the learner saw of the step's trained tokens (`records.trained_tokens`)."""
        return self.filesystem.get(_tokens_path(key))

    def write_tokens(self, key: StepKey, data: pa.Buffer) -> bool:
        return self.filesystem.put(_tokens_path(key), data)

    def planned_steps(self, attempt: int) -> list[int]:
        return self._steps(attempt, ".plan.json")

    def done_steps(self, attempt: int) -> list[int]:
        return self._steps(attempt, ".done.json")

    # ---- versions

    def versions(self, attempt: int) -> list[int]:
        return self._numbers(f"versions/{attempt:06d}")

    def version(self, attempt: int, version: int) -> WeightsReady | None:
        return self._read(WeightsReady, f"versions/{attempt:06d}/{version:08d}.json")

    def write_version(self, ready: WeightsReady) -> bool:
        return self._write(f"versions/{ready.attempt:06d}/{ready.version:08d}.json", ready)

    def acknowledgement(self, engine: str, version: int) -> Acknowledgement | None:
        return self._read(Acknowledgement, f"acks/{engine}/{version:08d}.json")

    def write_acknowledgement(self, ack: Acknowledgement) -> bool:
        return self._write(f"acks/{ack.engine}/{ack.version:08d}.json", ack)

    def engines(self) -> list[str]:
        """Incarnations that have acknowledged a version."""
        return self.filesystem.list("acks")

    # ---- hints and events

    def hint(self) -> Hint | None:
        return self._read(Hint, "hint/run_ahead.json")

    def write_hint(self, hint: Hint) -> None:
        self.filesystem.put("hint/run_ahead.json", dump(hint), exclusive=False)

    def beat(self, stage: str, waiting_for: str | None, waited_seconds: float = 0.0) -> None:
        """Say that a stage lives and what it waits for."""
        document = {"stage": stage, "waiting_for": waiting_for, "waited_seconds": waited_seconds, "at": time.time()}
        self.filesystem.put(f"beat/{stage}.json", json.dumps(document).encode(), exclusive=False)

    def beats(self) -> list[dict[str, Any]]:
        """The newest word of every stage that has spoken."""
        found = [self.filesystem.get(f"beat/{name}") for name in self.filesystem.list("beat")]
        return [json.loads(bytes(data)) for data in found if data is not None]

    def event_streams(self) -> list[str]:
        return self.filesystem.list("events")

    def event_numbers(self, stream: str) -> list[int]:
        return self._numbers(f"events/{stream}")

    def event(self, stream: str, number: int) -> Event | None:
        return self._read(Event, f"events/{stream}/{number:08d}.json")

    def write_event(self, event: Event) -> bool:
        return self._write(f"events/{event.stream}/{event.number:08d}.json", event)

    def _numbers(self, prefix: str) -> list[int]:
        names = self.filesystem.list(prefix)
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def _steps(self, attempt: int, ending: str) -> list[int]:
        names = self.filesystem.list(f"steps/{attempt:06d}")
        return sorted(int(name.removesuffix(ending)) for name in names if name.endswith(ending))

    def _read(self, cls: type[T], key: str) -> T | None:
        data = self.filesystem.get(key)
        return None if data is None else load(cls, memoryview(data))

    def _write(self, key: str, record: Any) -> bool:
        return self.filesystem.put(key, dump(record))


class EventStream:
    """The events of one writer, numbered from 0."""

    def __init__(self, folder: RunFolder, stream: str) -> None:
        self._folder = folder
        self._stream = stream
        self._next = 0

    def write(self, kind: str, *, attempt: int | None = None, **payload: Any) -> None:
        event = Event(
            stream=self._stream, number=self._next, kind=kind, at=time.time(), attempt=attempt, payload=payload
        )
        # A number that is taken was written by ourselves, and the answer was lost.
        while not self._folder.write_event(event):
            event = replace(event, number=event.number + 1)
        self._next = event.number + 1


def _tokens_path(key: StepKey) -> str:
    return f"steps/{key.attempt:06d}/{key.step:08d}.tokens.arrow"


def _step_path(key: StepKey, kind: str) -> str:
    return f"steps/{key.attempt:06d}/{key.step:08d}.{kind}.json"
