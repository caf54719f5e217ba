"""Numbers as a page says them, with their units."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

from agrpo.instruments import wording

NOTHING = "–"


def number(value: float | None) -> str:
    """Three significant digits; `NOTHING` for what is missing or not a number."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return wording.number(value)


def percent(share: float | None) -> str:
    """A share from 0 to 1, in per cent: with a decimal below 10 %, and one digit of what is smaller than that."""
    if share is None or not math.isfinite(share):
        return amount(share, "%")
    if 0 < abs(share) < 0.0995:
        return f"{100 * share:.1f} %" if abs(share) >= 0.0005 else f"{100 * share:.1g} %"
    return wording.percent(share)


def amount(value: float | None, unit: str, *, share: bool = False) -> str:
    """A number with its unit, or a share."""
    if share:
        return percent(value)
    told = number(value)
    return told if told == NOTHING or not unit else f"{told} {unit}"


def size(num_bytes: int) -> str:
    """Of memory."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 1000 * 2**20 else f"{num_bytes / 2**20:.0f} MiB"


def duration(seconds: float | None) -> str:
    """As one would say it, roughly."""
    return amount(seconds, "s") if seconds is None or not math.isfinite(seconds) else wording.duration(seconds)


def moment(unix_seconds: float) -> str:
    """A time of day, UTC."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M:%S}"


def plain(value: object) -> str:
    """A setting's value as a run's file would hold it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def letter(place: int) -> str:
    """What tells a run from the others of a page: A, B, and so on; A2 comes after Z."""
    times, rest = divmod(place, 26)
    return chr(ord("A") + rest) + (str(times + 1) if times else "")
