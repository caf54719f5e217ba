"""The four limits on generation in a step's measures: how long each held groups back, and which one bound."""

from __future__ import annotations

from collections.abc import Mapping

from agrpo.records.pace import Limit

WAITS = {
    Limit.RUN_AHEAD: "rollout/backpressure_s",
    Limit.LOAD: "rollout/load_wait_s",
    Limit.CEILING: "rollout/ceiling_wait_s",
    Limit.SCORING: "rollout/score_block_s",
}
"""The measure of each limit's waits."""


def waits_of(measures: Mapping[str, float]) -> dict[Limit, float]:
    """Mean seconds for which each limit held a group of the step; one that held none is left out."""
    return {limit: measures[name] for limit, name in WAITS.items() if name in measures}


def binding(measures: Mapping[str, float]) -> Limit | None:
    """The limit with the longest waits. None: no group of the step had to wait."""
    waits = waits_of(measures)
    return max(waits, key=lambda limit: waits[limit]) if any(waits.values()) else None
