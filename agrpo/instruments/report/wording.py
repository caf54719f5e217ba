"""Numbers as a page says them, with their units."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

NOTHING = "–"


def number(value: float | None) -> str:
    """Three significant digits; whole numbers with their thousands apart."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share from 0 to 1, in per cent."""
    if share is None or math.isnan(share):
        return NOTHING
    return f"{100 * share:.1f}%" if 0 < abs(share) < 0.1 else f"{100 * share:.0f}%"


def amount(value: float | None, unit: str, *, share: bool = False) -> str:
    """A number with its unit, or a share."""
    if share:
        return percent(value)
    return number(value) if value is None or not unit else f"{number(value)} {unit}"


def duration(seconds: float | None) -> str:
    """In the two largest units."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


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
