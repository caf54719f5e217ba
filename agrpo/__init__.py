"""agrpo: asynchronous GRPO as a pipeline of persisted stages.

Importing this package costs no torch, prefect or vllm: its names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agrpo.records.group import RolloutGroup as RolloutGroup
    from agrpo.records.rollout import Rollout as Rollout
    from agrpo.records.rollout import TurnRecord as TurnRecord
    from agrpo.rollout_loop import AsyncRolloutLoop as AsyncRolloutLoop
    from agrpo.runs import connect as connect

__version__ = "0.1.0"
__all__ = ["AsyncRolloutLoop", "Rollout", "RolloutGroup", "TurnRecord", "__version__", "connect"]

_HOME = {
    "AsyncRolloutLoop": "agrpo.rollout_loop",
    "Rollout": "agrpo.records.rollout",
    "RolloutGroup": "agrpo.records.group",
    "TurnRecord": "agrpo.records.rollout",
    "connect": "agrpo.runs",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'agrpo' has no attribute {name!r}; it offers: {', '.join(__all__)}")
