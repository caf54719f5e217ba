"""docs/sql.md, from the schema and the questions: `python -m agrpo.database.questions.document docs/sql.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb

from agrpo.database.questions import Question, all_questions
from agrpo.database.schema import create_all

_HEAD = """\
# A run in SQL

Everything a run does is in `run.duckdb`, in the run's folder: {num_relations} tables and views, and
{num_questions} questions answered: first [the questions](#the-questions), then [tables and views](#tables-and-views). This
page is made from the schema and from `agrpo/database/questions/`; tests hold it to them.

```sh
agrpo questions                                      # the questions
agrpo questions latest hardest_prompts --rows 5      # the answer to one
agrpo questions hardest_prompts --sql > mine.sql     # its SQL, to be changed
agrpo sql latest --file mine.sql                     # and asked; - reads standard input
agrpo sql latest                                     # tables and views
agrpo export latest ./exported                       # Parquet for DuckDB, Polars and datasets
```

From Python, `agrpo.connect("latest")` is a read-only DuckDB connection, and `agrpo.database.queries.query` asks one
question and lets the file go. Close a connection soon: while it is open the recorder cannot write. The run itself goes on,
and the recorder catches up. Times are in UTC.

**What counts.** A crash or a rollback leaves steps that were taken back. No row is ever deleted: the tables have them all,
the views called `live_…` leave them out. Ask the views, unless you ask about what was lost. A *ticket* is a group's number
in the run; groups, rollouts, turns, scores and rewards belong to a ticket and to no attempt. Join on `ticket`, on
`(ticket, rollout_index)`, or on `(attempt, step)`.

The names of views and of their columns stay; what is added comes at the end. `benchmarks/questions.py` times every question
on a made-up run of a million rollouts.

`agrpo export` writes Parquet, one file a table or view (`--what rollouts,tokens,metrics`, or `all`), sorted by ticket, with a
card that explains every column. It is of one moment and appears whole or not at all; the run goes on meanwhile.

```python
import duckdb, polars, datasets

duckdb.sql("SELECT avg(reward) FROM 'exported/rollouts.parquet'")
polars.scan_parquet("exported/rollouts.parquet").filter(polars.col("status") == "dropped").collect()
datasets.load_dataset("parquet", data_files="exported/rollouts.parquet")
```
"""


def document() -> str:
    """The whole page."""
    with duckdb.connect() as connection:
        create_all(connection)
        relations = connection.execute(
            "SELECT relation, kind, comment FROM schema_relations WHERE kind <> 'macro' ORDER BY kind DESC, relation"
        ).fetchall()
        columns = connection.execute(
            "SELECT relation, column_name, column_type, comment FROM schema_columns ORDER BY relation, column_index"
        ).fetchall()
    parts = [_HEAD.format(num_relations=len(relations), num_questions=len(all_questions()))]
    parts += ["## The questions\n", *_index(), *(_question(question) for question in all_questions())]
    parts += ["## Tables and views\n", " · ".join(f"[{name}](#{name})" for name, _, _ in relations) + "\n"]
    for relation, kind, comment in relations:
        own = [row[1:] for row in columns if row[0] == relation]
        parts.append(f"### {relation}\n\n{kind.capitalize()}. {comment}\n\n{_table(own)}\n")
    return "\n".join(parts)


def _index() -> Iterator[str]:
    for question in all_questions():
        yield f"{question.number}. [{question.title}](#{question.number}-{question.name})"
    yield ""


def _question(question: Question) -> str:
    """Question, how to read the answer, options and columns, and the SQL, folded."""
    options = "".join(
        f"\n- `--{own.name}`: {own.about}" + ("" if own.default is None else f" (default {own.default})")
        for own in question.parameters
    )
    return (
        f"### {question.number} {question.name}\n\n**{question.title}** {question.reading}\n\n"
        + (f"Options:\n{options}\n\n" if options else "")
        + "The answer:\n\n"
        + "\n".join(f"- `{names.replace(', ', '`, `')}`: {about}" for names, about in question.columns)
        + f"\n\n<details><summary>The SQL</summary>\n\n```sql\n{question.sql()}\n```\n\n</details>\n"
    )


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| `{name}` | {kind} | {comment} |" for name, kind, comment in rows]
    return "\n".join(["| column | type | |", "|---|---|---|", *lines])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), "utf-8")
