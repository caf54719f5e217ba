"""What-ifs: what another reward or advantage would have made of recorded rollouts. Beside the facts, never in their place."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from agrpo.records.arrow import read_table, write_table

SCHEMA = pa.schema(
    [
        ("ticket", pa.int64()),
        ("rollout_index", pa.int32()),
        ("reward_before", pa.float64()),
        ("reward", pa.float64()),
        ("advantage_before", pa.float64()),
        ("advantage", pa.float64()),
        ("error", pa.string()),
    ]
)
_NAME = "whatif"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is asked. Written once, before the first group; who asks again under the name must ask the same."""

    name: str
    kind: str
    """`reward` or `advantage`."""
    part: str
    """Name of the reward or advantage."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Those that were given, as of the part's table in a run file."""
    keep: bool = False
    """Whether the reward is added to the recorded ones instead of standing in their place."""
    code: str
    """Digest of the part's module."""
    begun_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRollout:
    """One rollout, as recorded and as it would have been. Rewards are None where nothing was scored."""

    rollout_index: int
    reward_before: float | None
    reward: float | None
    advantage_before: float
    advantage: float
    error: str | None = None
    """Why the reward gave no value, where it failed."""

    @property
    def flipped(self) -> bool:
        """Whether its advantage has the other sign."""
        return self.advantage * self.advantage_before < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfGroup:
    """One group of a what-if."""

    ticket: int
    drop_reason_before: str | None
    """Why the recorded scores keep the group from being trained; None: they do not."""
    drop_reason: str | None
    """Why the scores of the what-if would; None: they would not."""
    rollouts: list[WhatIfRollout]


def optional(reward: float) -> float | None:
    """NaN, which stands for an absent reward in arithmetic, as None."""
    return None if math.isnan(reward) else reward


def whatif_to_arrow(group: WhatIfGroup) -> pa.Buffer:
    """The group as an IPC file, one row per rollout."""
    rows = [{"ticket": group.ticket, **asdict(rollout)} for rollout in group.rollouts]
    facts = {name: getattr(group, name) for name in ("ticket", "drop_reason_before", "drop_reason")}
    return write_table(rows, SCHEMA, _NAME, facts)


def whatif_table(data: pa.Buffer | bytes, where: str | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """The rows and the group's facts in an IPC file. Raises `RecordError`."""
    return read_table(data, SCHEMA, _NAME, where)


def whatif_from_arrow(data: pa.Buffer | bytes, where: str | None = None) -> WhatIfGroup:
    """The group in an IPC file. Raises `RecordError`."""
    table, facts = whatif_table(data, where)
    rollouts = [
        WhatIfRollout(**{name: value for name, value in row.items() if name != "ticket"}) for row in table.to_pylist()
    ]
    return WhatIfGroup(**facts, rollouts=rollouts)
