"""What a reward returned, as values that may go into a sum: a finite number, or None with the reason where one is due."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

LONGEST_REASON = 500
WRONG_ANSWER = "it returned "


class CallFailed(Exception):
    """A call gave no values at all. The message is the reason, fit for the record."""

    @property
    def is_final(self) -> bool:
        """Whether the reward ended well and answered wrongly: to ask it again would make its answer look right."""
        return str(self).startswith(WRONG_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reward said of one completion."""

    value: float | None
    error: str | None = None
    """Why there is no value, where something failed."""


def verdicts_of(returned: object, count: int) -> list[Verdict]:
    """One verdict per completion. Raises `CallFailed` for anything but a list of `count` entries (A-200)."""
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise CallFailed(f"{WRONG_ANSWER}{type(returned).__name__}; expected a list with one entry per completion")
    entries: list[object] = [*returned]
    if len(entries) != count:
        raise CallFailed(f"{WRONG_ANSWER}{len(entries)} values for {count} completions; expected one per completion")
    return [_verdict(entry) for entry in entries]


def _verdict(entry: object) -> Verdict:
    if entry is None:
        return Verdict(value=None)
    plain = _plain(entry)
    if not isinstance(plain, Real):
        return Verdict(value=None, error=f"it returned {type(entry).__name__}; expected a number or None")
    try:
        value = float(plain)
    except OverflowError:
        return Verdict(value=None, error=f"it returned {type(entry).__name__} too large for a float")
    if not math.isfinite(value):
        return Verdict(value=None, error=f"it returned {value}; expected a finite number or None")
    return Verdict(value=value)


def _plain(entry: object) -> object:
    """The number inside a scalar of numpy or torch; anything else as it is."""
    item = getattr(entry, "item", None)
    try:
        return item() if callable(item) else entry
    except (TypeError, ValueError):
        return entry


def reason_of(error: BaseException) -> str:
    """An exception in one line, with the place it was raised."""
    if isinstance(error, CallFailed):
        return str(error)
    if isinstance(error, SystemExit):
        text = f"it called exit({error.code!r})"
    else:
        text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return text[:LONGEST_REASON].replace("\n", " ") + place
