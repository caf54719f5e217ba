"""When a turn was asked for, and how long its answer took. Times are `time.monotonic`'s; nothing but a reader looks at them."""

from __future__ import annotations

import time
from dataclasses import replace

from agrpo.records.rollout import TurnRecord


def timed(turn: TurnRecord, *, began: float, asked: float) -> TurnRecord:
    """The turn, answered now. `began`: when its rollout did. `asked`: when it was asked for.

    One that says already how long it took is left as it is: it was asked for within this request.
    """
    if turn.duration_seconds is not None:
        return turn
    return replace(turn, begun_seconds=asked - began, duration_seconds=time.monotonic() - asked)
