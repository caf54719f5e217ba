"""The run folder: every durable object of a run under its name, read and written as records.

run.json                                 the resolved settings, seeds and digests; written first
attempts/{a}.json  bases/{a}.json        incarnations of the learner, and where their histories join
rewinds/{n}.json                         wishes to go back to a step
claims/{ticket}.{try}.json               who generates which group
groups/{ticket}.arrow                    rollouts, with tokens
scored/{ticket}.arrow                    scores and marks, without tokens
archive/{queue}/{first}-{last}.parquet   groups, scored and claims that no recovery needs soon
steps/{a}/{k}.plan.json  {k}.done.json   the write-ahead log, and what was seen of the trained tokens
                {k}.tokens.arrow
weights/{v}-{digest}/                    published weights; a version document names them
versions/{a}/{v}.json  acks/{engine}/{v}.json
checkpoints/{k}-{a}/
events/{stream}/{n}.json
hint/run_ahead.json  beat/{stage}.json  servers/{name}.json   overwritten, may be stale, never decide anything
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agrpo.errors import RecordError, RecordTooNew, RunExists, RunNotFound
from agrpo.queue.amendments import amended_document
from agrpo.queue.claims import Claims
from agrpo.queue.filesystems import Filesystem
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.queue.naming import ours
from agrpo.queue.topic import Topic
from agrpo.records.checksum import DOCUMENT_KEY, check_document, sealed_document
from agrpo.records.documents import dump, load
from agrpo.records.progress import (
    Acknowledgement,
    Attempt,
    Base,
    Done,
    Event,
    Hint,
    Plan,
    Rewind,
    WeightsReady,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from agrpo.records.pace import Standing

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA_MAJOR = 1
"""Of `run.json`: runs of this major version and of earlier ones are read."""
_UNSEALED_KEYS = ("name", "created_at", "settings", "config_digest")
"""What every `run.json` has; one that ends with its checksum needs no such proof."""
_BRING_BACK = "bring it back from a copy of the run"
_BEAT: dict[str, type | tuple[type, ...]] = {
    "stage": str,
    "at": (int, float),
    "waited_seconds": (int, float),
    "waiting_for": (str, type(None)),
}
_NUMBERED = re.compile(r"[0-9]+\.json")
_OF_STEP = re.compile(r"[0-9]+\.(plan\.json|done\.json|tokens\.arrow)")


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
        self._bases: dict[int, Base] = {}
        self._damaged: dict[str, bytes] = {}
        """Hints and beats that were passed over, as they were."""

    @classmethod
    def create(cls, url: str, document: dict[str, Any]) -> RunFolder:
        """Begin a run. Raises `RunExists` where one is, whatever its state."""
        folder = cls(open_filesystem(url))
        text = json.dumps(document, indent=1, ensure_ascii=False).encode()
        if not folder.filesystem.put("run.json", sealed_document(text)):
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
        """`run.json`, with the settings that hold now: what resumes have amended lies over those it began with.

        Raises `RecordError` where bytes are not those written.
        """
        return amended_document(self.filesystem, self.run_json())

    def run_json(self) -> dict[str, Any]:
        """`run.json`, as the run began.

        Raises `RecordError` where its bytes are not those written, `RecordTooNew` for a run of a later agrpo.
        """
        data, where = self.filesystem.get("run.json"), f"{self.url}/run.json"
        assert data is not None, "run.json is written before anything else"
        try:
            document = json.loads(bytes(data))
        except ValueError as error:
            raise RecordError(f"{where} is damaged: {error}; {_BRING_BACK}") from None
        _check_run(document, where)
        check_document(bytes(data), document, where)
        document.pop(DOCUMENT_KEY, None)
        return document

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

    def attempt(self, number: int) -> Attempt | None:
        return self._read(Attempt, f"attempts/{number:06d}.json")

    def write_attempt(self, attempt: Attempt) -> bool:
        return self._write(f"attempts/{attempt.attempt:06d}.json", attempt)

    def bases(self) -> dict[int, Base]:
        """Every base that is written, by attempt. Each is read once."""
        for number in self._numbers("bases"):
            if number not in self._bases and (base := self._read(Base, f"bases/{number:06d}.json")) is not None:
                self._bases[number] = base
        return dict(self._bases)

    def write_base(self, base: Base) -> bool:
        return self._write(f"bases/{base.attempt:06d}.json", base)

    def rewinds(self) -> list[int]:
        """Numbers of the wishes to go back."""
        return self._numbers("rewinds")

    def rewind(self, number: int) -> Rewind | None:
        return self._read(Rewind, f"rewinds/{number:06d}.json")

    def write_rewind(self, rewind: Rewind) -> bool:
        return self._write(f"rewinds/{rewind.number:06d}.json", rewind)

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

    def acknowledgements(self, engine: str) -> list[int]:
        """Versions that an incarnation has acknowledged."""
        return self._numbers(f"acks/{engine}")

    def write_acknowledgement(self, ack: Acknowledgement) -> bool:
        return self._write(f"acks/{ack.engine}/{ack.version:08d}.json", ack)

    def engines(self) -> list[str]:
        """Incarnations that have acknowledged a version."""
        return self.filesystem.list("acks")

    # ---- hints and events

    def hint(self) -> Hint | None:
        """None where there is none, and where it is damaged: it decides nothing, and is soon written anew."""
        key = "hint/run_ahead.json"
        data = self.filesystem.get(key)
        try:
            return None if data is None else load(Hint, memoryview(data), f"{self.url}/{key}")
        except RecordTooNew:
            raise
        except RecordError as error:
            self._pass_over(key, bytes(data or b""), str(error))
            return None

    def has_finished(self, hint: Hint | None) -> bool:
        """Whether the newest attempt has said that the run has its last step; an older one may say so late."""
        if hint is None or not hint.finished:
            return False
        return hint.attempt is None or hint.attempt >= max(self.attempts(), default=0)

    def write_hint(self, hint: Hint) -> None:
        self.filesystem.put("hint/run_ahead.json", dump(hint), exclusive=False)

    def beat(
        self, stage: str, waiting_for: str | None, waited_seconds: float = 0.0, standing: Standing | None = None
    ) -> None:
        """Say that a stage lives and what it waits for; a generator also, how it stands to its limits."""
        document = {"stage": stage, "waiting_for": waiting_for, "waited_seconds": waited_seconds, "at": time.time()}
        document |= {"standing": asdict(standing)} if standing is not None else {}
        self.filesystem.put(f"beat/{stage}.json", json.dumps(document).encode(), exclusive=False)

    def beats(self, of: Callable[[str], bool] = lambda name: True) -> list[dict[str, Any]]:
        """The newest word of every stage that has spoken; of those whose names `of` is true of.

        A damaged one is passed over: its stage is soon to speak again.
        """
        names = [name for name in self.filesystem.list("beat") if of(name.removesuffix(".json"))]
        found = {f"beat/{name}": self.filesystem.get(f"beat/{name}") for name in names}
        heard = [self._heard(key, bytes(data)) for key, data in found.items() if data is not None]
        return [beat for beat in heard if beat is not None]

    def _heard(self, key: str, data: bytes) -> dict[str, Any] | None:
        try:
            beat = json.loads(data)
            if all(isinstance(beat[name], kind) for name, kind in _BEAT.items()):
                return beat
        except (ValueError, KeyError, TypeError):
            pass
        self._pass_over(key, data, f"{self.url}/{key} is damaged")
        return None

    def _pass_over(self, key: str, data: bytes, why: str) -> None:
        """Say once of each content that it is not heeded."""
        if self._damaged.get(key) != data:
            self._damaged[key] = data
            logger.warning("%s. It is passed over, since it decides nothing: its stage writes it anew", why)

    def write_server(self, name: str, url: str) -> None:
        """Say where the run's own server of that name answers from now on."""
        self.filesystem.put(f"servers/{name}.json", json.dumps({"url": url}).encode(), exclusive=False)

    def forget_servers(self, names: Sequence[str] | None = None) -> None:
        """Those of these names, or all, are not there yet: where they were, another run's may answer by now."""
        for name in self.filesystem.list("servers") if names is None else [f"{name}.json" for name in names]:
            self.filesystem.delete(f"servers/{name}")

    def give_up_server(self, url: str) -> None:
        """Nothing can be asked of the server there any more: its stage sees that it is not named, and starts it again."""
        for name in self.filesystem.list("servers"):
            data = self.filesystem.get(f"servers/{name}")
            if data is not None and self._place(f"servers/{name}", bytes(data)) == url:
                self.filesystem.delete(f"servers/{name}")

    def server_urls(self) -> list[str]:
        """Where the run's own servers answer, or did: one that was started again has another place."""
        keys = [f"servers/{name}" for name in self.filesystem.list("servers")]
        found = {key: data for key in keys if (data := self.filesystem.get(key)) is not None}
        urls = [self._place(key, bytes(data)) for key, data in found.items()]
        return [url for url in urls if url is not None]

    def _place(self, key: str, data: bytes) -> str | None:
        try:
            url = json.loads(data)["url"]
            if isinstance(url, str):
                return url
        except (ValueError, KeyError, TypeError):
            pass
        self._pass_over(key, data, f"{self.url}/{key} is damaged")
        return None

    def event_streams(self) -> list[str]:
        return self.filesystem.list("events")

    def event_numbers(self, stream: str) -> list[int]:
        return self._numbers(f"events/{stream}")

    def event(self, stream: str, number: int) -> Event | None:
        return self._read(Event, f"events/{stream}/{number:08d}.json")

    def write_event(self, event: Event) -> bool:
        return self._write(f"events/{event.stream}/{event.number:08d}.json", event)

    def _numbers(self, prefix: str) -> list[int]:
        names = ours(self.filesystem.list(prefix), _NUMBERED, f"{self.url}/{prefix}")
        return sorted(int(name.removesuffix(".json")) for name in names)

    def _steps(self, attempt: int, ending: str) -> list[int]:
        prefix = f"steps/{attempt:06d}"
        names = ours(self.filesystem.list(prefix), _OF_STEP, f"{self.url}/{prefix}")
        return sorted(int(name.removesuffix(ending)) for name in names if name.endswith(ending))

    def _read(self, cls: type[T], key: str) -> T | None:
        data = self.filesystem.get(key)
        return None if data is None else load(cls, memoryview(data), f"{self.url}/{key}")

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


def _check_run(document: Any, where: str) -> None:
    """Raise `RecordError` for what is no `run.json`, `RecordTooNew` for a later agrpo's."""
    if not isinstance(document, dict):
        raise RecordError(f"{where} is damaged: a JSON object was expected; {_BRING_BACK}")
    run = cast("dict[str, Any]", document)
    missing = [] if DOCUMENT_KEY in run else [key for key in _UNSEALED_KEYS if key not in run]
    if missing:
        raise RecordError(f"{where} is damaged or not agrpo's: it has no {', no '.join(missing)}; {_BRING_BACK}")
    version = str(run.get("schema_version", "1.0"))
    major = version.partition(".")[0]
    if not major.isdecimal():
        raise RecordError(f'{where} is damaged: schema_version "{version}" is no version; {_BRING_BACK}')
    if int(major) > SCHEMA_MAJOR:
        raise RecordTooNew(
            f"{where} was written by agrpo {run.get('agrpo_version')} under schema {version} of run.json; this agrpo reads "
            f"{SCHEMA_MAJOR}.x. Upgrade agrpo for this run"
        )


def _tokens_path(key: StepKey) -> str:
    return f"steps/{key.attempt:06d}/{key.step:08d}.tokens.arrow"


def _step_path(key: StepKey, kind: str) -> str:
    return f"steps/{key.attempt:06d}/{key.step:08d}.{kind}.json"
