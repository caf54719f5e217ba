"""How full the servers are together, read from the `/metrics` of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from agrpo.engines.serving_vllm.endpoint import Refused
from agrpo.engines.serving_vllm.facts import pressure_of
from agrpo.engines.serving_vllm.replica import Replica
from agrpo.engines.serving_vllm.tries import PRESSURE_SECONDS
from agrpo.records.pressure import Pressure


class Gauge:
    """Adds up what servers say, and remembers it for the time that none can be asked."""

    def __init__(self) -> None:
        self._last: Pressure | None = None
        self._preempted: dict[str, int] = {}
        """Preemptions that each server counted last."""
        self._preemptions = 0

    async def read(self, replicas: Sequence[Replica], *, max_model_len: int | None, retries: int) -> Pressure:
        """Ask all servers that can be asked. `max_model_len` and `retries`: as `Pressure` has them."""
        told = await asyncio.gather(*(self._of(replica) for replica in replicas), return_exceptions=True)
        found = [pressure for pressure in told if isinstance(pressure, Pressure)]
        usages = [pressure.kv_usage for pressure in found if pressure.kv_usage is not None]
        if not usages:
            # Only a server that answers, and says nothing of its load, is one that cannot say.
            if None in told or self._last is None:
                return Pressure(kv_usage=None, retries=retries)
            return replace(self._last, retries=retries, is_new=False)
        self._last = Pressure(
            kv_usage=max(usages),
            running=sum(pressure.running for pressure in found),
            queued=sum(pressure.queued for pressure in found),
            preemptions=self._preemptions,
            cache_tokens=sum(pressure.cache_tokens or 0 for pressure in found) or None,
            max_model_len=max_model_len,
            retries=retries,
        )
        return self._last

    async def _of(self, replica: Replica) -> Pressure | None:
        """One server's; None where it does not say. Raises `Unreachable` where it does not answer soon."""
        try:
            found = pressure_of(await replica.endpoint.text("/metrics", PRESSURE_SECONDS))
        except Refused:
            return None
        if found is not None:
            # What it counted before it was first asked was for others. A count that fell began anew, with its server.
            seen, self._preempted[replica.url] = self._preempted.get(replica.url, found.preemptions), found.preemptions
            self._preemptions += found.preemptions - (seen if seen <= found.preemptions else 0)
        return found
