"""The database against the run folder: every record that it says it holds is in every table as the folder has it."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agrpo.audit.columns import Row, columns_of, rows_of
from agrpo.audit.look import Look, counted
from agrpo.database.ledger import Entry
from agrpo.database.queries import asking
from agrpo.errors import DatabaseBusy, DatabaseError

if TYPE_CHECKING:
    import duckdb

LIVING_SECONDS = 10.0
"""A run of which a stage has spoken since goes on."""
MOST_SHARED = 5
"""Columns that say which row it is."""
HELD_SECONDS = 2.0
"""How long the recorder is kept waiting before it is let in between two tables."""
_TABLES = "SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The rows of a table that are compared."""

    entry: Callable[[Row], Entry]
    """The record that a row comes from."""
    sql: str | None = None
    """None: `columns_of` the table."""


def _of(stream: str) -> Callable[[Row], Entry]:
    """Rows that begin with the record's number."""
    return lambda row: Entry(stream, row[0])


def _own(stream: str) -> Callable[[Row], Entry]:
    """Rows that begin with the stream's own name (an attempt, an engine) and the number in it."""
    return lambda row: Entry(f"{stream}/{row[0]}", row[1])


PROJECTIONS = {
    "runs": Projection(entry=lambda _: Entry("run", 0)),
    "attempts": Projection(entry=_of("attempts")),
    "bases": Projection(entry=_of("bases")),
    "rewinds": Projection(entry=_of("rewinds")),
    "groups": Projection(entry=_of("groups")),
    "rollouts": Projection(entry=_of("groups")),
    "turns": Projection(
        sql="SELECT ticket, rollout_index, turn_index, begun_seconds, duration_seconds FROM turns", entry=_of("groups")
    ),
    "tool_calls": Projection(entry=_of("groups")),
    "scored_groups": Projection(entry=_of("scored")),
    "scores": Projection(entry=_of("scored")),
    "rewards": Projection(entry=_of("scored")),
    "reward_extras": Projection(entry=_of("scored")),
    "reward_metrics": Projection(entry=_of("scored")),
    "plans": Projection(entry=_own("plans")),
    "step_groups": Projection(entry=_own("plans")),
    "steps": Projection(entry=_own("steps")),
    "samples": Projection(entry=_own("steps")),
    "step_rows": Projection(entry=_own("steps")),
    "metrics": Projection(entry=_own("steps")),
    "versions": Projection(entry=_own("versions")),
    "acknowledgements": Projection(entry=_own("acknowledgements")),
    "whatif_runs": Projection(entry=lambda row: Entry(f"whatifs/{row[0]}", 0)),
    "whatif_groups": Projection(entry=_own("whatif")),
    "whatif_rollouts": Projection(entry=_own("whatif")),
    "events": Projection(entry=_own("events")),
}


def check_database(look: Look) -> None:
    """Read it whole, then compare it with what the folder holds. One that is absent is no finding: it can be rebuilt."""
    path = look.folder.database
    if not path.exists():
        look.line("database", 0, f"there is none at {path}; `agrpo rebuild` makes it from the folder")
        return
    try:
        num_rows = _read_whole(look)
        num_missing = _compare(look)
    except DatabaseBusy:
        raise
    except DatabaseError as error:
        look.find(str(path), str(error))
        look.line("database", 0, "cannot be read")
        return
    told = "every record is in it" if not num_missing else f"{counted(num_missing, 'record')} not recorded yet"
    look.line("database", num_rows, f"rows; {told}")


def is_live(look: Look) -> bool:
    """Whether a stage has spoken lately: of a run that is over, only a recorder that has not ended may bring more."""
    hint = look.folder.hint()
    finished = hint is not None and hint.finished
    spoke = [beat for beat in look.folder.beats() if beat["at"] > time.time() - LIVING_SECONDS]
    return any(not finished or beat["stage"] == "recorder" for beat in spoke)


def _read_whole(look: Look) -> int:
    """Every column of every row, so that DuckDB checks every block; the number of rows."""
    num_rows = 0
    with asking(look.folder) as connection:
        left = [name for (name,) in connection.execute(_TABLES).fetchall()]
    total = len(left)
    while left:
        with asking(look.folder) as connection:
            until = time.monotonic() + HELD_SECONDS
            while left and time.monotonic() < until:
                sql = f"SELECT count(*), bit_xor(hash(whole)) FROM {left.pop()} AS whole"
                num_rows += connection.execute(sql).fetchall()[0][0]
                look.tell("database", total - len(left), total)
    return num_rows


def _compare(look: Look) -> int:
    """Compare table by table, as of one moment; the number of records that are not recorded yet."""
    found: dict[str, list[Row]] = {}
    names: dict[str, list[str]] = {}
    with asking(look.folder) as connection:
        entries = {Entry(*row) for row in connection.execute("SELECT stream, number FROM ingest").fetchall()}
        for number, (table, projection) in enumerate(PROJECTIONS.items()):
            names[table], found[table] = _ask(connection, table, projection.sql)
            look.tell("rows", number + 1, len(PROJECTIONS))
    for table, projection in PROJECTIONS.items():
        pair = _Pair(table=table, names=names[table], found=_by_entry(found[table], projection.entry))
        _compare_table(look, pair, entries)
    expected = {entry for records in look.rows.values() for entry in records}
    missing = expected - entries
    of_the_run = [
        entry for entry in missing if not entry.stream.startswith("whatif")
    ]  # those are asked when it is over
    if of_the_run and not is_live(look):
        kinds = Counter(entry.stream.partition("/")[0] for entry in of_the_run)
        what = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
        look.find(
            str(look.folder.database),
            f"expected every record of a run that has ended; {counted(len(of_the_run), 'record')} not recorded ({what}): "
            "`agrpo record` adds them",
        )
    return len(missing)


def _ask(connection: duckdb.DuckDBPyConnection, table: str, sql: str | None) -> tuple[list[str], list[Row]]:
    """Names of the columns, and the rows."""
    if sql is not None:
        answer = connection.execute(sql)
        return [name for (name, *_) in answer.description or []], answer.fetchall()
    names = columns_of(table)
    rows = connection.sql(f"SELECT {', '.join(names)} FROM {table}").to_arrow_table()
    return list(names), rows_of(table, rows)


def _by_entry(rows: Iterable[Row], entry: Callable[[Row], Entry]) -> dict[Entry, list[Row]]:
    found: defaultdict[Entry, list[Row]] = defaultdict(list)
    for row in rows:
        found[entry(row)].append(row)
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A table as the database has it, by record."""

    table: str
    names: list[str]
    """Of its columns."""
    found: dict[Entry, list[Row]]

    def told(self, row: Row) -> str:
        return ", ".join(f"{name} {value}" for name, value in zip(self.names, row, strict=True))

    def told_apart(self, row: Row, odd: list[Row]) -> str:
        """An expected row and the one found that is most like it: what they have in common first, and what differs."""
        other = max(odd, key=lambda one: sum(value == own for value, own in zip(one, row, strict=True)))
        pairs = list(zip(self.names, row, other, strict=True))
        first = next(place for place, (_, own, value) in enumerate(pairs) if own != value)
        shared = [f"{name} {own}" for name, own, _ in pairs[: min(first, MOST_SHARED)]]
        differing = [(name, own, value) for name, own, value in pairs if own != value]
        expected, found = ([*shared, *(f"{name} {values[side]}" for name, *values in differing)] for side in (0, 1))
        return f"expected {', '.join(expected)}; found {', '.join(found)}"


def _compare_table(look: Look, pair: _Pair, recorded: set[Entry]) -> None:
    expected, found = look.rows.get(pair.table, {}), pair.found
    for entry in sorted((found.keys() | (expected.keys() & recorded)) - look.unread):
        wanted, rows = (Counter(map(_comparable, side.get(entry, []))) for side in (expected, found))
        if wanted == rows:
            continue
        absent, odd = list((wanted - rows).elements()), list((rows - wanted).elements())
        about = f"database, table {pair.table}, {entry.stream} {entry.number}"
        if entry not in expected:
            look.find(about, f"it has {counted(len(odd), 'row')}; expected none, since the folder holds no such record")
        elif len(absent) == len(odd):
            look.find(about, pair.told_apart(absent[0], odd) + _others(len(absent) - 1))
        else:
            shown = f"without {pair.told(absent[0])}" if absent else f"once more than expected: {pair.told(odd[0])}"
            look.find(about, f"expected {counted(wanted.total(), 'row')}, found {rows.total()}, {shown}")


def _others(number: int) -> str:
    return f", and {number} more rows differ" if number > 0 else ""


def _comparable(row: Row) -> Row:
    """NaN equals itself here."""
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row)
