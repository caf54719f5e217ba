"""Runs as wholes: checked before anything starts, begun in a folder of their own, found again by a short name."""

from agrpo.runs.beginning import go_back, prepare, refuse_problems, refuse_too_large
from agrpo.runs.checks import check
from agrpo.runs.finding import RunSummary, connect, find, summaries
from agrpo.runs.identity import check_unchanged
from agrpo.runs.publishing import adapter_publish

__all__ = [
    "RunSummary",
    "adapter_publish",
    "check",
    "check_unchanged",
    "connect",
    "find",
    "go_back",
    "prepare",
    "refuse_problems",
    "refuse_too_large",
    "summaries",
]
