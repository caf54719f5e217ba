"""What-ifs as rows."""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa

from agrpo.database.batch import Batch, Row
from agrpo.database.values import as_json, timestamp
from agrpo.records.whatif import WhatIf, whatif_table


def add_whatif(batch: Batch, whatif: WhatIf) -> None:
    """What is asked."""
    row = asdict(whatif)
    times: Row = {"begun_at": timestamp(whatif.begun_at)}
    named: Row = {"whatif": row.pop("name"), "settings": as_json(whatif.settings)}
    batch.add_rows("whatif_runs", [row | named | times])


def add_whatif_group(name: str, batch: Batch, data: pa.Buffer) -> None:
    """The rows of a slot. Raises `RecordError`."""
    table, facts = whatif_table(data)
    batch.add_rows("whatif_groups", [{"whatif": name, **facts}])
    batch.add_table("whatif_rollouts", table.add_column(0, "whatif", pa.array([name] * len(table), pa.string())))
