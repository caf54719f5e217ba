"""agrpo: asynchronous GRPO as a pipeline of persisted stages.

Importing this package costs no torch, prefect or vllm: its names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agrpo.runs import connect as connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]

_HOME = {"connect": "agrpo.runs"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'agrpo' has no attribute {name!r}; it offers: {', '.join(__all__)}")
