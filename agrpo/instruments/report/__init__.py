"""Reports: what became of a run, or of several side by side, as one HTML page that opens anywhere and fetches nothing.

`facts` asks the database once, `charts` draws, `page` lays out. Every number is the answer to a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agrpo.database.queries import HasDatabase
from agrpo.errors import StoreError


def write_report(runs: Sequence[str | Path | HasDatabase], file: Path) -> int:
    """Write the report of one run, or the comparison of several, and return its bytes.

    Raises as `database.queries.connect`, and `StoreError` where the file cannot be written.
    """
    from agrpo.instruments.report.facts import read_facts
    from agrpo.instruments.report.page import report_page

    data = report_page([read_facts(run) for run in runs]).encode("utf-8", "backslashreplace")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}; name another file with --out") from error
    return len(data)


__all__ = ["write_report"]
