"""A finding: one reading of a run, in words, with what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding asks of its reader. From worst to best."""

    WARNING = "warning"
    """Something is wrong, or a setting holds the run back."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    GOOD = "good"
    """Looked at, and as it should be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a rule says of the last steps. docs/diagnosis.md explains every rule."""

    rule: str
    """A row of docs/spec/async_grpo.md such as "A-113", or one of agrpo's own, "agrpo/…"."""
    severity: Severity
    title: str
    """The verdict in a few words."""
    reading: str
    """The measured numbers behind it, with units, in sentences."""
    change: str
    """What to change, by the names of the settings; "Nothing." where all is well."""


NOTHING = "Nothing."
"""The change of a finding that asks for none."""
