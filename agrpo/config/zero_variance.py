"""Groups of equal rewards: what becomes of them where a run's file does not say (rulings 16 and 17, K26)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agrpo.config.sections import AsyncSection


def zero_variance_of(tree: Mapping[str, Any]) -> str:
    """`keep`, `drop` or `refill`, by a tree of settings, whose defaults may be filled in or not.

    None said: `keep` in lockstep, and where a divergence or entropy has a coefficient, since such a group moves the policy
    by that term all the same; else `refill`.
    """
    chosen = tree.get("step", {}).get("zero_variance")
    lockstep = tree.get("async", {}).get("max_staleness", AsyncSection().max_staleness) == 0
    return chosen or ("keep" if lockstep or _is_regularised(tree) else "refill")


def _is_regularised(tree: Mapping[str, Any]) -> bool:
    """Whether the loss has a term that asks for no advantage."""
    divergence, entropy = tree.get("divergence", {}), tree.get("entropy", {})
    return any((divergence.get("coefficient"), entropy.get("coefficient"), entropy.get("adaptive")))
