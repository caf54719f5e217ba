"""What a look at a run finds: lines that count what was looked at, and a finding for whatever does not balance."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    about: str
    """The ticket, step or file it is about."""
    told: str
    """What was expected, and what was found."""

    def __str__(self) -> str:
        return f"{self.about}: {self.told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: so many things of a kind, and what is to be said of them."""

    what: str
    number: int
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The outcome of verifying a run."""

    lines: list[Line] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def balances(self) -> bool:
        return not self.findings
