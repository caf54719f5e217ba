"""How often a server is asked again, and how long it may take."""

from __future__ import annotations

import itertools

TRIES = 2
"""How often a request is asked that has no answer in time, or a wrong one."""
DELIVERIES = 5
"""How often one version is given to servers that die meanwhile."""
SLIPS = 5
"""How often, where a server that is there gives no whole answer."""
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0
PROBE_SECONDS = 60.0
PRESSURE_SECONDS = 4.0


def pauses() -> itertools.chain[float]:
    """Seconds between tries of one request, each twice as long."""
    growing = (FIRST_PAUSE_SECONDS * 2.0**power for power in range(6))
    return itertools.chain(growing, itertools.repeat(LONGEST_PAUSE_SECONDS))
