"""The four limits on generation in a step's measures: for how long each held the generators, and which one bound."""

from __future__ import annotations

from collections.abc import Mapping

from agrpo.records.pace import Limit

SHARES = {
    Limit.RUN_AHEAD: "rollout/backpressure_frac",
    Limit.LOAD: "rollout/load_wait_frac",
    Limit.CEILING: "rollout/ceiling_wait_frac",
    Limit.SCORING: "rollout/score_block_frac",
}
"""The measure of what share of a step each limit holds a generator. The mean wait of a group says little of that: an
allowance that is given out group by group makes every one of them wait, each for a moment."""


def waits_of(measures: Mapping[str, float]) -> dict[Limit, float]:
    """Seconds of the step for which each limit held a generator; one that held none is left out."""
    seconds = measures.get("perf/step_s", 0.0)
    waits = {limit: seconds * measures.get(name, 0.0) for limit, name in SHARES.items()}
    return {limit: waited for limit, waited in waits.items() if waited}


def binding(measures: Mapping[str, float]) -> Limit | None:
    """The limit that held generators longest. None: none did."""
    waits = waits_of(measures)
    return max(waits, key=lambda limit: waits[limit]) if waits else None
