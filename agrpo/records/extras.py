"""What rewards noted of a rollout, as Arrow: a list of entries, each with the reward and the column it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from agrpo.records.score import Extra, Score

EXTRA = pa.struct([("reward", pa.string()), ("name", pa.string()), ("value", pa.string()), ("number", pa.float64())])
"""One entry of a column that a reward noted. `value` is JSON; `number` is there where it is a number or a boolean."""


def extras_to_arrow(scores: Sequence[Score], index: int) -> list[dict[str, Any]]:
    """Every entry of rollout `index`, reward by reward."""
    return [_entry(score.reward, name, values[index]) for score in scores for name, values in score.extras.items()]


def extras_from_arrow(reward: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Extra]]:
    """The columns of one reward, each with an entry per row; none of a record that is older than they are."""
    found: dict[str, list[Extra]] = {}
    for row in rows:
        for entry in row["extras"] or []:
            if entry["reward"] == reward:
                value = None if entry["value"] is None else json.loads(entry["value"])
                found.setdefault(entry["name"], []).append(value)
    return found


def text_of(value: Extra) -> str | None:
    """A text as it is, another value as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def number_of(value: Extra) -> float | None:
    """The value where it is a number; 1 for True, 0 for False."""
    return None if value is None or isinstance(value, str) else float(value)


def _entry(reward: str, name: str, value: Extra) -> dict[str, Any]:
    text = None if value is None else json.dumps(value, ensure_ascii=False)
    return {"reward": reward, "name": name, "value": text, "number": number_of(value)}
