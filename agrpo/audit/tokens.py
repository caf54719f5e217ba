"""What was seen of a step's trained tokens, held against its done record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agrpo.audit.look import Look
from agrpo.records.progress import Done
from agrpo.records.trained_tokens import tokens_table

if TYPE_CHECKING:
    import pyarrow as pa


def check_tokens(look: Look, name: str, data: pa.Buffer | None, done: Done | None) -> None:
    """There where a sample was trained, one row for each, in their order. `name`: of the file."""
    table = None if data is None else look.read(name, lambda: tokens_table(data, name))
    if done is None:
        return
    if table is None:
        if done.samples and data is None:
            look.find(name, f"step {done.step} trained {len(done.samples)} samples; expected the file, found none")
        return
    expected = [(one.ticket, one.rollout_index, one.sequence_index) for one in done.samples]
    found = list(zip(*(table.column(key).to_pylist() for key in _KEY), strict=True))
    if expected != found:
        odd = next((pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]), None)
        told = f"{odd[0]} and found {odd[1]}" if odd else f"{len(expected)} rows and found {len(found)}"
        look.find(name, f"its rows (ticket, rollout, sequence) are not the step's samples: expected {told}")
        return
    lengths = [one.num_trained_tokens for one in done.samples]
    for column in ("log_probs", "entropies"):
        held = table.column(column).combine_chunks().value_lengths().to_pylist()
        if held != lengths:
            look.find(
                name, f"expected {column} of {sum(lengths)} trained tokens, found {sum(held)}, or others' lengths"
            )
            return
    _check_entropies(look, name, table, done, np.array(lengths, dtype=np.int64))


_KEY = ("ticket", "rollout_index", "sequence_index")


def _check_entropies(look: Look, name: str, table: pa.Table, done: Done, lengths: np.ndarray) -> None:
    """The mean of a sample's entropies is the one that its done record tells."""
    if not len(lengths) or not lengths.all():
        return
    flat = table.column("entropies").combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    means = np.add.reduceat(flat, np.cumsum(lengths) - lengths) / lengths
    told = np.array([one.entropy_mean for one in done.samples])
    odd = np.flatnonzero(~np.isclose(means, told, rtol=1e-9, atol=1e-12, equal_nan=True))
    if len(odd):
        place = int(odd[0])
        look.find(
            name,
            f"sample {place} has a mean entropy of {means[place]!r}, its done record says {told[place]!r}; expected the same",
        )
