"""Groups of equal rewards: what becomes of them where a run's file does not say (rulings 16 and 17, K26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agrpo.config.sections import AsyncSection

_REGULARISERS = ("divergence", "entropy")
"""Tables whose `coefficient` adds a term to the loss that does not ask for an advantage."""


def zero_variance_of(tree: Mapping[str, Any]) -> str:
    """`keep`, `drop` or `refill`, by a tree of settings, whose defaults may be filled in or not.

    None said: `keep` in lockstep, and where a divergence or entropy has a coefficient, since such a group moves the policy
    by that term all the same; else `refill`.
    """
    chosen = tree.get("step", {}).get("zero_variance")
    lockstep = tree.get("async", {}).get("max_staleness", AsyncSection().max_staleness) == 0
    return chosen or ("keep" if lockstep or _is_regularised(tree) else "refill")


def _is_regularised(tree: Mapping[str, Any]) -> bool:
    return any(tree.get(table, {}).get("coefficient", 0.0) for table in _REGULARISERS)
