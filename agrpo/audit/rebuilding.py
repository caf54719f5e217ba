"""Rebuilding: the database made again from the topics and the archive, row for row what it was, and put in its place."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agrpo.audit.look import Tell
from agrpo.config import RecorderSection, load_settings
from agrpo.database.comparing import Comparison, compare
from agrpo.database.queries import asking
from agrpo.database.writer import Database
from agrpo.errors import DatabaseBusy, DatabaseError, StoreLostWrites
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What became of a database that was made again."""

    num_records: int
    """Of the run folder, all of which are in the new one."""
    comparisons: list[Comparison]
    """Against the old one, by table; empty where that could not be read."""
    unreadable: str | None = None
    """Why the old one could not be compared."""

    @property
    def identical(self) -> bool:
        return self.unreadable is None and all(table.identical for table in self.comparisons)


def rebuild(folder: RunFolder, *, check: bool = False, tell: Tell = lambda *_: None) -> Rebuilt:
    """Make the database again beside the old one, compare the two, and put the new one in place.

    `check`: only compare. A database of a run that goes on may be behind its folder, and differs by that. Raises
    `DatabaseBusy` where the old one stays open elsewhere, `DatabaseError` where there is no room for the new one, and
    `StoreLostWrites` where the old one is the last copy of what the folder has lost: it stays.
    """
    topk = RecorderSection(**load_settings(folder.document()).tree.get("recorder", {})).topk
    with _draft(folder.database) as draft:
        tell("rebuild", 0, 1)
        num_records = record_once(folder, Database(draft), topk=topk)
        tell("rebuild", 1, 1)
        rebuilt = _compared(folder.database, draft, num_records, tell)
        if not check:
            if rebuilt.unreadable is None:
                _refuse_to_lose(folder, draft, topk=topk)
            Database(folder.database).replace_by(draft)
    return rebuilt


def _compared(old: Path, new: Path, num_records: int, tell: Tell) -> Rebuilt:
    if not old.exists():
        return Rebuilt(num_records=num_records, comparisons=[], unreadable=f"{old} does not exist")
    try:
        tables = compare(old, new, lambda done, total: tell("compare", done, total))
    except DatabaseBusy:
        raise
    except DatabaseError as error:
        return Rebuilt(num_records=num_records, comparisons=[], unreadable=str(error))
    return Rebuilt(num_records=num_records, comparisons=tables)


def _refuse_to_lose(folder: RunFolder, draft: Path, *, topk: bool) -> None:
    """Raise `StoreLostWrites` where the old database holds records, or lists of tokens, that the folder has not."""
    with asking(folder.database) as connection:
        held = [set(connection.execute(sql).fetchall()) for sql in _HELD]
    record_once(folder, Database(draft), topk=topk)  # what the old one got while the new one was made
    with asking(draft) as connection:
        records, tokens = (held[at] - set(connection.execute(sql).fetchall()) for at, sql in enumerate(_HELD))
    lost = [f"{stream} {number}" for stream, number in sorted(records)]
    lost += [f"tokens of steps/{attempt} {step}" for attempt, step in sorted(tokens)]
    if lost:
        shown = ", ".join(lost[:4]) + (f" … {lost[-1]}" if len(lost) > 4 else "")
        raise StoreLostWrites(
            f"{folder.database} holds {len(lost)} records that {folder.url} has lost ({shown}): it is their last copy and "
            "stays as it is. `agrpo verify` names the missing files: bring them back from a copy of the run. To do without "
            "them, move the database away first"
        )


_HELD = (
    "SELECT stream, number FROM ingest",
    "SELECT DISTINCT attempt, step FROM samples WHERE log_probs IS NOT NULL",
)


@contextmanager
def _draft(database: Path) -> Generator[Path]:
    """A name beside the database, on the same mount; nothing of it is left after the block."""
    draft = database.with_name(f".{database.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)
        draft.with_name(f"{draft.name}.wal").unlink(missing_ok=True)
