"""The recorder: one more reader of the run folder, which turns all that is in it into rows of the run's database.

No stage knows that it exists. It may be killed, started late, or find its database deleted: what the ledger in the
database does not hold is read again, and rows and ledger are committed together. Between two passes its process keeps
the run's folder small (`upkeep`), whatever becomes of the database.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

from agrpo.config import RecorderSection, StoreSection, load_settings
from agrpo.database import documents, slots, whatifs
from agrpo.database.batch import Batch, give_back
from agrpo.database.ledger import Entry, Ledger
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError, StoreLostWrites
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.queue.whatifs import WhatIfs
from agrpo.stages.context import StageContext
from agrpo.stages.upkeep import Upkeep

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 2.0
"""Longest wait for a reader to let the database go, before saying so and trying again later."""
LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries while the database cannot be written."""
LAST_PASS_SECONDS = 60.0
"""How long after the stop the last rows may take."""
NICENESS = 10
"""Where cores are scarce, the stages that are recorded go first: nothing of a run waits for its database."""
SHARE = 0.02
"""Of one core: the most that recording takes from the stages it records, while `LONGEST_REST_SECONDS` allows it."""
LONGEST_REST_SECONDS = 10.0
"""Between two passes, however much the last one cost: the database stays near the run."""
LONGEST_LAG = 64
"""Versions that an engine is asked for one by one; those of one that lags further (it is gone) are listed."""


def run(context: StageContext) -> None:
    """Record until asked to stop, and then all that was written before. Raises `DatabaseError` if that cannot be."""
    os.nice(NICENESS)
    folder = RunFolder.open(context.run_url)
    tree = load_settings(folder.document()).tree
    upkeep = Upkeep(folder, StoreSection(**tree.get("store", {})))
    _Recorder(context, folder, RecorderSection(**tree.get("recorder", {})), upkeep).record()


def record_once(folder: RunFolder, database: Database, *, topk: bool = False, whole: bool = True) -> int:
    """Record everything new, in transactions of bounded size; the number of records. `whole`: as in `unrecorded`.

    Raises `DatabaseBusy` or `DatabaseError`: the rest is recorded the next time.
    """
    recorded = 0
    while True:
        for batch in _batches(unrecorded(folder, database.ledger(), topk=topk, whole=whole)):
            if not database.append(batch.tables(), batch.entries):
                break
            recorded += len(batch.entries)
        else:
            return recorded


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Records of one kind by one writer that are not recorded yet."""

    entries: list[Entry]
    add: Callable[[Batch, int], None]
    """Reads the record of a number and adds its rows."""


def unrecorded(folder: RunFolder, ledger: Ledger, *, topk: bool = False, whole: bool = True) -> list[Stream]:
    """What the ledger lacks, in the order to record it.

    Streams of one writer have no gaps. Unless the `whole` folder is to be listed, they are followed from the last number
    recorded, so that a look costs the same after a thousand steps as after one.

    What was written last is listed first and recorded last, so what is in the database never lacks what it came from:
    scores have their group, steps their plan, and a base the plans that were adopted under it.
    """
    reader = _Reader(folder, ledger, whole)
    listed = [
        *reader.events(),
        *reader.acknowledgements(),
        *reader.attempts(),
        *reader.tickets(topk),
        *reader.whatifs(),
        reader.run(),
    ]
    return [stream for stream in reversed(listed) if stream.entries]


def rest_seconds(every_seconds: float, cpu_seconds: float) -> float:
    """How long to rest after a pass that took so many seconds of a core."""
    return max(every_seconds, min(cpu_seconds / SHARE, LONGEST_REST_SECONDS))


class _Recorder:
    """One incarnation's loop."""

    def __init__(self, context: StageContext, folder: RunFolder, settings: RecorderSection, upkeep: Upkeep) -> None:
        self.context = context
        self.folder = folder
        self.settings = settings
        self.upkeep = upkeep
        self.database = Database(folder.database, deadline_seconds=PATIENCE_SECONDS)

    def record(self) -> None:
        pause, stopped_at, whole = self.settings.every_seconds, None, True
        while True:
            if stopped_at is None and self.context.stop.is_set():
                stopped_at, whole = time.monotonic(), True
                self.upkeep.finish()
            began = time.thread_time()
            try:
                recorded = record_once(self.folder, self.database, topk=self.settings.topk, whole=whole)
            except DatabaseError as error:
                pause, whole = min(pause * 2, LONGEST_PAUSE_SECONDS), True
                self._warn_or_raise(error, stopped_at, pause)
            else:
                give_back()
                pause, whole = rest_seconds(self.settings.every_seconds, time.thread_time() - began), False
                logger.debug("recorded %d records", recorded)
                if stopped_at is not None:
                    return
                self.folder.beat(self.context.stage, None)
            if stopped_at is None:
                self._rest(pause)
            else:
                time.sleep(min(pause, 1.0))

    def _rest(self, seconds: float) -> None:
        """Until the next pass, or the stop. Upkeep goes on, whatever becomes of the database."""
        until = time.monotonic() + seconds
        while not self.context.stop.is_set() and (left := until - time.monotonic()) > 0:
            if self.upkeep.work():
                give_back()
            self.context.stop.wait(min(left, max(self.upkeep.due_in(), 0.01)))

    def _warn_or_raise(self, error: DatabaseError, stopped_at: float | None, pause: float) -> None:
        """A database that cannot be written never ends a run, whose folder holds everything; but the end must tell."""
        if stopped_at is not None and time.monotonic() - stopped_at > LAST_PASS_SECONDS:
            raise DatabaseError(
                f"{self._what_is_left()} not recorded {LAST_PASS_SECONDS:.0f} s after the end of the run: {error}. "
                f"They are safe; `agrpo record {self.folder.url}` records them"
            ) from error
        if stopped_at is None:
            self.folder.beat(self.context.stage, "the database")
        logger.warning("not recorded yet, trying again in %.0f s: %s", pause, error)

    def _what_is_left(self) -> str:
        try:
            ledger = self.database.ledger()
        except DatabaseError:
            return "The records of the run were"
        entries = [entry for stream in unrecorded(self.folder, ledger) for entry in stream.entries]
        kinds = sorted({entry.stream.partition("/")[0] for entry in entries})
        return f"{len(entries)} records ({', '.join(kinds)}) were"


class _Reader:
    """The run folder against the ledger: one stream for each place where records are kept."""

    def __init__(self, folder: RunFolder, ledger: Ledger, whole: bool) -> None:
        self.folder = folder
        self.ledger = ledger
        self.whole = whole

    def events(self) -> Iterator[Stream]:
        for name in self.folder.event_streams():
            listed, read = partial(self.folder.event_numbers, name), partial(self.folder.event, name)
            yield self._followed(f"events/{name}", listed, read, documents.add_event)

    def acknowledgements(self) -> Iterator[Stream]:
        newest = max((self.ledger.highest(f"versions/{a}") or 0 for a in self.folder.attempts()), default=0)
        for engine in self.folder.engines():
            stream, read = f"acknowledgements/{engine}", partial(self.folder.acknowledgement, engine)
            yield self._stream(stream, self._acknowledged(engine, newest), read, documents.add_acknowledgement)

    def _acknowledged(self, engine: str, newest: int) -> list[int]:
        """Versions that the engine has acknowledged: not all of them, so there is no next one to look for."""
        last = self.ledger.highest(f"acknowledgements/{engine}")
        if not self.whole and last is not None and newest - last <= LONGEST_LAG:
            lag = range(last + 1, newest + 1)
            return [version for version in lag if self.folder.acknowledgement(engine, version) is not None]
        return self.folder.acknowledgements(engine)

    def attempts(self) -> Iterator[Stream]:
        """Bases, wishes to go back, attempts, and what attempts have written."""
        folder = self.folder
        numbers = folder.attempts()
        bases = folder.bases() if self.ledger.missing("bases", numbers) else {}
        yield self._stream("bases", [a for a in numbers if a in bases], bases.get, documents.add_base)
        yield self._followed("rewinds", folder.rewinds, folder.rewind, documents.add_rewind)
        yield self._stream("attempts", numbers, folder.attempt, documents.add_attempt)
        for a in numbers:
            listed, read = partial(folder.versions, a), partial(folder.version, a)
            yield self._followed(f"versions/{a}", listed, read, documents.add_version)
        for a in numbers:
            listed, read = partial(folder.done_steps, a), self._step_reader(self._finished, a)
            yield self._followed(f"steps/{a}", listed, read, documents.add_done)
        for a in numbers:
            listed, read = partial(folder.planned_steps, a), self._step_reader(folder.plan, a)
            yield self._followed(f"plans/{a}", listed, read, documents.add_plan)

    def tickets(self, topk: bool) -> Iterator[Stream]:
        """Scores, groups and claims; nothing is listed below the first ticket that is missing."""
        scored, groups = self.folder.scored, self.folder.groups
        yield self._stream("scored", scored.numbers(self.ledger.floor("scored")), scored.read, slots.add_scores)
        add_group = partial(slots.add_group, topk=topk)
        yield self._stream("groups", groups.numbers(self.ledger.floor("groups")), groups.read, add_group)
        claimed = self.folder.claims.tickets(self.ledger.floor("claims"))
        yield Stream(entries=self.ledger.missing("claims", claimed), add=lambda *_: None)  # the entry says it all

    def whatifs(self) -> Iterator[Stream]:
        """What-ifs and their groups, which may be asked long after the run has ended."""
        found = WhatIfs(self.folder.filesystem)
        for name in found.names():
            topic, stream = found.groups(name), f"whatif/{name}"
            add = partial(whatifs.add_whatif_group, name)
            yield self._stream(stream, topic.numbers(self.ledger.floor(stream)), topic.read, add)
            yield self._stream(f"whatifs/{name}", [0], lambda _, name=name: found.read(name), whatifs.add_whatif)

    def run(self) -> Stream:
        url = self.folder.url
        return self._stream(
            "run", [0], lambda _: self.folder.run_json(), lambda batch, found: documents.add_run(batch, url, found)
        )

    def _followed(
        self,
        name: str,
        listed: Callable[[], list[int]],
        read: Callable[[int], T | None],
        add: Callable[[Batch, T], None],
    ) -> Stream:
        """A stream without gaps: from the last number recorded on, each record is read once, to see it and to add it."""
        last = self.ledger.highest(name)
        if self.whole or last is None:
            return self._stream(name, listed(), read, add)
        found = cache(read)
        numbers = itertools.takewhile(lambda number: found(number) is not None, itertools.count(last + 1))
        return self._stream(name, numbers, found, add)

    def _stream(
        self, name: str, numbers: Iterable[int], read: Callable[[int], T | None], add: Callable[[Batch, T], None]
    ) -> Stream:
        def add_record(batch: Batch, number: int) -> None:
            record = read(number)
            if record is None:
                raise StoreLostWrites(
                    f"{name} {number} was listed in {self.folder.url} and is gone; restore the folder"
                )
            add(batch, record)

        return Stream(entries=self.ledger.missing(name, numbers), add=add_record)

    def _finished(self, key: StepKey) -> documents.FinishedStep | None:
        done = self.folder.done(key)
        return None if done is None else documents.FinishedStep(done=done, tokens=self.folder.tokens(key))

    def _step_reader(self, read: Callable[[StepKey], T | None], attempt: int) -> Callable[[int], T | None]:
        return lambda step: read(StepKey(attempt, step))


def _batches(streams: list[Stream]) -> Iterator[Batch]:
    """The records of the streams, in order, in batches that one transaction can hold."""
    batch = Batch()
    for stream in streams:
        for entry in stream.entries:
            stream.add(batch, entry.number)
            batch.entries.append(entry)
            if batch.is_full:
                yield batch
                batch = Batch()
    if batch.entries:
        yield batch
