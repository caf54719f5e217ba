"""Numbers in words, with their units, as whoever watches a run would say them."""

from __future__ import annotations


def number(value: float) -> str:
    """Three significant digits; from a thousand on whole, with the thousands apart."""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def count(number: int, noun: str) -> str:
    """`1 group`, `1,638 groups`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float) -> str:
    """A share from 0 to 1, in whole per cent."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Rounded as one would say it: `0.4 s`, `45 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.1f} s" if 0 < seconds < 9.95 and round(seconds, 1) != round(seconds) else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
