"""Trained tokens: what the learner saw of every token it trained in a step, one row per sample, as Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from agrpo.errors import RecordError
from agrpo.records.checksum import ARROW_KEY, UNSEALED, check_arrow, sealed_arrow

if TYPE_CHECKING:
    import numpy as np

SCHEMA = pa.schema(
    [
        ("ticket", pa.int64()),
        ("rollout_index", pa.int32()),
        ("sequence_index", pa.int32()),
        ("log_probs", pa.list_(pa.float32())),
        ("entropies", pa.list_(pa.float32())),
    ],
    metadata={"agrpo.schema": "trained_tokens", "agrpo.schema_version": "1.0", ARROW_KEY: UNSEALED},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """One sample's trained tokens, in their order in the sequence."""

    ticket: int
    rollout_index: int
    sequence_index: int
    log_probs: np.ndarray
    """float32 `[N]`, of the policy before the step, nats."""
    entropies: np.ndarray
    """float32 `[N]`, nats."""


def tokens_to_arrow(samples: Sequence[TrainedTokens]) -> pa.Buffer:
    """The samples of a step, in their order, as an IPC file."""
    columns = [pa.array([getattr(sample, field.name) for sample in samples], field.type) for field in SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(pa.table(columns, schema=SCHEMA))
    return sealed_arrow(sink.getvalue())


def tokens_table(data: pa.Buffer | bytes, where: str = "a trained_tokens record") -> pa.Table:
    """The rows of an IPC file. `where`: what errors call it. Raises `RecordError`."""
    check_arrow(data, where)
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{where} is not a whole trained_tokens record: {error}; the file is damaged or not agrpo's. Bring it back from a copy"
        ) from None
    return table.select(SCHEMA.names)
