"""What a reward returned, as values that may go into a sum: a finite number, or None with the reason where one is due."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

from agrpo.errors import NoteRefused
from agrpo.metrics.names import added_up
from agrpo.records.score import Unjudged
from agrpo.records.text import writable
from agrpo.rewards.calling import NOTED_WRONGLY, Notes, plain

LONGEST_REASON = 500
WRONG_ANSWER = "it returned "


class CallFailed(Exception):
    """A call gave no values at all. The message is the reason, fit for the record."""

    @property
    def is_final(self) -> bool:
        """Whether the reward ended well and answered wrongly: to ask it again would make its answer look right."""
        return str(self).startswith((WRONG_ANSWER, NOTED_WRONGLY))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a reward said of one completion."""

    value: float | None
    error: str | None = None
    """Why there is no value, where something failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a reward said of some completions."""

    verdicts: list[Verdict]
    notes: Notes = field(default_factory=Notes)


def judged_alone(one_by_one: Sequence[Judged]) -> Judged:
    """What calls for one completion each said, as if of one call.

    A metric is added up over the calls that noted it, by the rule of its name.
    """
    columns = dict.fromkeys(column for one in one_by_one for column in one.notes.extras)
    names = dict.fromkeys(name for one in one_by_one for name in one.notes.metrics)
    noted = [one.notes for one in one_by_one]
    return Judged(
        verdicts=[verdict for one in one_by_one for verdict in one.verdicts],
        notes=Notes(
            extras={column: [own.extras.get(column, [None])[0] for own in noted] for column in columns},
            metrics={
                name: added_up(name, [own.metrics[name] for own in noted if name in own.metrics]) for name in names
            },
        ),
    )


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
    if isinstance(entry, Unjudged):
        return Verdict(value=None, error=writable(entry.reason[:LONGEST_REASON]))
    number = plain(entry)
    if not isinstance(number, Real):
        return Verdict(value=None, error=f"it returned {type(entry).__name__}; expected a number or None")
    try:
        value = float(number)
    except OverflowError:
        return Verdict(value=None, error=f"it returned {type(entry).__name__} too large for a float")
    if not math.isfinite(value):
        return Verdict(value=None, error=f"it returned {value}; expected a finite number or None")
    return Verdict(value=value)


def reason_of(error: BaseException) -> str:
    """An exception in one line, with the place it was raised."""
    if isinstance(error, CallFailed | NoteRefused):
        return writable(str(error))
    if isinstance(error, SystemExit):
        text = f"it called exit({error.code!r})"
    else:
        text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return writable(text[:LONGEST_REASON]).replace("\n", " ") + place
