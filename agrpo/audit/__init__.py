"""Audit: whether a run's books balance, its policy made again from history alone, its database from the folder.

Nothing here writes into the part of a run that its stages read; all of it may be asked of a run that goes on.
"""

from __future__ import annotations

from agrpo.audit.balance import Balance, Finding, Line
from agrpo.audit.rebuilding import Rebuilt, rebuild
from agrpo.audit.replaying import Replay, replay
from agrpo.audit.verifying import verify

__all__ = ["Balance", "Finding", "Line", "Rebuilt", "Replay", "rebuild", "replay", "verify"]
