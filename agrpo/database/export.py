"""A run as Parquet, for DuckDB, Polars, `datasets` and whatever else reads it: one file a view, and a card that explains it.

All files are of one moment: the database is read in one go, while which the recorder waits and the run goes on. They are
written beside the folder and moved into place at the end, whole or not at all.
"""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from agrpo.database.queries import HasDatabase, asking
from agrpo.errors import DatabaseError

EXPORTS = {
    "rollouts": "rollouts_with_rewards",
    "groups": "group_status",
    "prompts": "prompts",
    "turns": "turns",
    "tokens": "token_log_probs",
    "samples": "live_samples",
    "rewards": "rewards",
    "steps": "live_steps",
    "metrics": "live_metrics",
    "versions": "versions",
    "events": "events",
    "settings": "settings",
}
"""What can be exported, and the table or view it is."""

ROWS_PER_GROUP = 100_000
"""Of Parquet: what a reader holds at least. Tokens and texts make a rollout some KB."""
MEMORY_LIMIT = "2GB"
"""DuckDB spills to the folder being written beyond that."""

_ORDER = ("ticket", "rollout_index", "turn_index", "token_index", "sequence_index", "step", "version", "name")
"""Rows are sorted by those of these columns that they have."""

CARD_MARK = "Every rollout that was sampled is"
"""Words of the card by which an earlier export is known."""

_CARD = """\
---
configs:
{configs}
---

# {name}

Run `{name}` at {url}, trained by agrpo {version}, exported on {now} (database schema {schema}). Every rollout that was sampled is
in; steps that a crash or a rollback took back are left out of samples, tokens, steps and metrics. Times are in UTC; JSON is
text. `ticket` is the number of a group, `rollout_index` a rollout's place in it.

```python
duckdb.sql("FROM '{first}.parquet'")
polars.scan_parquet("{first}.parquet")
datasets.load_dataset("parquet", data_files="{first}.parquet")
```
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One file of an export."""

    path: Path
    num_rows: int


def export(
    path_or_run: str | Path | HasDatabase,
    folder: Path,
    what: Sequence[str] = tuple(EXPORTS),
    *,
    overwrite: bool = False,
    told: Callable[[str], None] = lambda name: None,
) -> list[Exported]:
    """Write Parquet files into a new folder. `told` hears the name of each before it is written.

    Raises `DatabaseError` for an unknown name, and for a folder with something in it, unless that is an earlier export and
    `overwrite` is set. Otherwise as `database.queries.connect`.
    """
    chosen = _checked(what)
    _refuse_place(folder, overwrite)
    folder = folder.resolve()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.mkdir(parents=True)
        with asking(path_or_run) as connection:
            connection.execute(f"SET temp_directory = {_quoted(draft / '.spill')}; SET memory_limit = '{MEMORY_LIMIT}'")
            files = [_write(connection, name, draft, told) for name in chosen]
            (draft / "README.md").write_text(_card(connection, chosen, files), "utf-8")
        shutil.rmtree(draft / ".spill", ignore_errors=True)
        _replace(draft, folder)
    except OSError as error:
        raise DatabaseError(f"{folder} cannot be written: {error}; name a folder on a disk with room") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [Exported(path=folder / file.path.name, num_rows=file.num_rows) for file in files]


def _refuse_place(folder: Path, overwrite: bool) -> None:
    """Only a new or empty folder, or an earlier export, is replaced: nothing else can be made again."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not _is_export(folder):
        raise DatabaseError(f"{folder} is there and is no export; name a new folder")
    if not overwrite:
        raise DatabaseError(f"{folder} holds an export already; name another folder, or replace it with --overwrite")


def _is_export(folder: Path) -> bool:
    """Whether the folder holds what an export writes, and nothing else."""
    own = {"README.md", *(f"{name}.parquet" for name in EXPORTS)}
    names = {entry.name for entry in folder.iterdir()}
    return names <= own and (folder / "README.md").is_file() and CARD_MARK in (folder / "README.md").read_text("utf-8")


def _checked(what: Sequence[str]) -> list[str]:
    """The names, each once, in the order of `EXPORTS`."""
    for name in what:
        if name not in EXPORTS:
            near = difflib.get_close_matches(name, EXPORTS, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise DatabaseError(f"{name!r} cannot be exported; {meant}there are: {', '.join(EXPORTS)}")
    if not what:
        raise DatabaseError(f"nothing is to be exported; name some of: {', '.join(EXPORTS)}")
    return [name for name in EXPORTS if name in what]


def _write(connection: duckdb.DuckDBPyConnection, name: str, draft: Path, told: Callable[[str], None]) -> Exported:
    told(name)
    path = draft / f"{name}.parquet"
    kinds = {column: kind for column, kind, _ in _columns(connection, EXPORTS[name])}
    # JSON is an extension type in Parquet that not every reader knows.
    columns = ", ".join(f"{own}::VARCHAR AS {own}" if kind == "JSON" else own for own, kind in kinds.items())
    order = ", ".join(own for own in _ORDER if own in kinds) or "ALL"
    ((num_rows,),) = connection.execute(
        f"COPY (SELECT {columns} FROM {EXPORTS[name]} ORDER BY {order}) TO {_quoted(path)} "
        f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROWS_PER_GROUP})"
    ).fetchall()
    return Exported(path=path, num_rows=num_rows)


def _columns(connection: duckdb.DuckDBPyConnection, relation: str) -> list[tuple[str, str, str]]:
    """Name, type and comment of every column."""
    return connection.execute(
        "SELECT column_name, column_type, comment FROM schema_columns WHERE relation = ? ORDER BY column_index",
        [relation],
    ).fetchall()


def _card(connection: duckdb.DuckDBPyConnection, names: Sequence[str], files: Sequence[Exported]) -> str:
    """What is in the folder, in the form that dataset hubs read."""
    ((run, url, made_by),) = connection.execute(
        "SELECT coalesce(document->>'$.name', name), url, coalesce(document->>'$.agrpo_version', 'of unknown version') "
        "FROM runs"
    ).fetchall()
    ((schema,),) = connection.execute("SELECT version FROM schema_info").fetchall()
    head = _CARD.format(
        configs="\n".join(f"- config_name: {name}\n  data_files: {name}.parquet" for name in names),
        name=run,
        url=url,
        now=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        version=made_by,
        schema=schema,
        first=names[0],
    )
    return head + "".join(_section(connection, name, file) for name, file in zip(names, files, strict=True))


def _section(connection: duckdb.DuckDBPyConnection, name: str, file: Exported) -> str:
    relation = EXPORTS[name]
    ((comment,),) = connection.execute("SELECT comment FROM schema_relations WHERE relation = ?", [relation]).fetchall()
    rows = "\n".join(
        f"| `{column}` | {'VARCHAR' if kind == 'JSON' else kind} | {text} |"
        for column, kind, text in _columns(connection, relation)
    )
    return f"\n## {name}\n\n{file.num_rows:,} rows of `{relation}`. {comment}\n\n| column | type | |\n|---|---|---|\n{rows}\n"


def _replace(draft: Path, folder: Path) -> None:
    """Move the draft to where the folder is, if it is there."""
    if not folder.exists():
        os.rename(draft, folder)
        return
    aside = draft.with_name(f"{draft.name}.replaced")
    os.rename(folder, aside)
    os.rename(draft, folder)
    if aside.is_dir():
        shutil.rmtree(aside)
    else:
        aside.unlink()


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
