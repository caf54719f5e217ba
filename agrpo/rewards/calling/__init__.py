"""A call of a reward: what it is told besides the group, and what it notes besides its values (G-184 to G-186)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING

from agrpo.errors import NoteRefused
from agrpo.metrics.names import measure_named
from agrpo.records.group import RolloutGroup
from agrpo.records.score import Extra
from agrpo.records.text import writable
from agrpo.records.trainer_state import TrainerState

if TYPE_CHECKING:
    from agrpo.config import RunConfig

MOST_COLUMNS = 64
MOST_METRICS = 256
"""Of one call: a name made from a value would never end."""
LONGEST_NAME = 100
LONGEST_TEXT = 8192
"""Characters of one entry of a column."""
LARGEST_INTEGER = 2**63
NOTED_WRONGLY = "it noted "


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a call noted."""

    extras: dict[str, list[Extra]] = field(default_factory=dict[str, list[Extra]])
    """By column; lists have one entry per completion."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class Call:
    """One call of a reward for one group, or for a completion of it alone."""

    def __init__(self, num_completions: int, trainer_state: TrainerState | None = None) -> None:
        self.num_completions = num_completions
        self.trainer_state = trainer_state or TrainerState()
        self._extras: dict[str, list[Extra]] = {}
        self._metrics: dict[str, float] = {}

    @property
    def notes(self) -> Notes:
        """What is noted so far."""
        return Notes(extras=dict(self._extras), metrics=dict(self._metrics))

    def log_extra(self, column: str, values: Iterable[Extra]) -> None:
        """Note a value of each completion: a text, a number, a boolean, or None.

        Raises `NoteRefused` for another number of values, a value of another kind or size, and a column noted before.
        """
        name = _named("log_extra", column, self._extras, MOST_COLUMNS)
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise NoteRefused(
                f'log_extra("{name}") got {type(values).__name__}; expected a list, one entry per completion'
            )
        entries: list[object] = [*values]
        if len(entries) != self.num_completions:
            raise NoteRefused(
                f'{NOTED_WRONGLY}{len(entries)} values in "{name}" for {self.num_completions} completions; expected one '
                "per completion"
            )
        self._extras[name] = [_extra(name, place, entry) for place, entry in enumerate(entries)]

    def log_metric(self, name: str, value: float) -> None:
        """Note a finite number of the whole call.

        Raises `NoteRefused` for anything else, for the name of a measure of agrpo, and for a name noted before.
        """
        name = _named("log_metric", name, self._metrics, MOST_METRICS)
        own = measure_named(name)
        if own is not None:
            raise NoteRefused(f'log_metric("{name}"): agrpo has a measure {own.name} itself; give yours another name')
        number = plain(value)
        if not isinstance(number, Real) or not _is_finite(number):
            raise NoteRefused(f'log_metric("{name}") got {_shown(value)}; expected a finite number')
        self._metrics[name] = float(number)


def state_at_start(config: RunConfig, prompts_per_epoch: int | None) -> TrainerState:
    """How far a run is before its first step. `prompts_per_epoch`: None where nobody has counted them."""
    return TrainerState(max_steps=config.num_steps(prompts_per_epoch), num_train_epochs=config.stop.epochs)


def state_of(group: RolloutGroup, begun: TrainerState) -> TrainerState:
    """How far the run was whose policy wrote the group."""
    return replace(begun, global_step=group.model_step or 0, epoch=float(group.prompt.epoch))


def plain(entry: object) -> object:
    """The number inside a scalar of numpy or torch; anything else as it is."""
    item = getattr(entry, "item", None)
    try:
        return item() if callable(item) else entry
    except (TypeError, ValueError, RuntimeError):
        return entry


def _named(function: str, name: object, noted: Mapping[str, object], most: int) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise NoteRefused(
            f"{function}: the name {_shown(name)}; expected a text of 1 to {LONGEST_NAME} characters, in one line"
        )
    if name in noted:
        raise NoteRefused(
            f'{function}("{name}") was called twice in one call; note all of it at once, or under two names'
        )
    if len(noted) == most:
        raise NoteRefused(f'{function}("{name}") is name {most + 1} of one call; expected at most {most}')
    return name


def _extra(column: str, place: int, entry: object) -> Extra:
    value = plain(entry)
    where = f'log_extra("{column}"), value {place}'
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise NoteRefused(
                f"{where}: a text of {len(value)} characters; expected at most {LONGEST_TEXT}: note a part of it"
            )
        return writable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral) and abs(int(value)) < LARGEST_INTEGER:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and _is_finite(value):
        return float(value)
    raise NoteRefused(f"{where}: {_shown(entry)}; expected a text, a finite number of 64 bits, True, False or None")


def _is_finite(number: Real) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    """A value for a message: of its own kind where it is short."""
    text = repr(value) if isinstance(value, str | float) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}…"
