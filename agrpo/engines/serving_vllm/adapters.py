"""Adapters on their way to servers: each version under a name of its own, beside those that requests still use.

Nothing pauses: a request names the version it begins under, and ends under it. The next version is loaded before the
oldest is dropped, so that a server holds `max_staleness + 2` of them at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agrpo.engines.serving_vllm.endpoint import Endpoint, Unreachable
from agrpo.engines.serving_vllm.facts import ODD, names_at
from agrpo.engines.serving_vllm.replica import FRESH, LOOK_SECONDS, LoadFailed, Replica
from agrpo.errors import EngineError

logger = logging.getLogger(__name__)


class AdapterDelivery:
    """vLLM's `load_lora_adapter`. A label is an adapter's name."""

    def __init__(self, max_staleness: int, version_of: Callable[[str], int | None]) -> None:
        """`version_of`: the version of this run that a name stands for, whichever generator gave it."""
        self.versions: dict[str, int] = {}
        """Version by name, of all that was delivered."""
        self._max_staleness = max_staleness
        self._version_of = version_of

    async def read_label(self, endpoint: Endpoint) -> str:
        """The newest of our adapters that a server has."""
        names = await names_at(endpoint, LOOK_SECONDS)
        return next((name for name in reversed(self.versions) if name in names), FRESH)

    def label(self, version: int, folder: Path) -> str:
        """The adapter's name. The folder's name holds its digest, so no two versions share one."""
        return f"{version}@{folder.name}"

    def model(self, label: str | None) -> str | None:
        """The name to ask for; None: the base model's."""
        return label

    async def is_left_paused(self, replica: Replica) -> bool:
        """Adapters come without a pause."""
        return False

    async def deliver(self, replicas: Sequence[Replica], version: int, folder: Path) -> None:
        """Load the adapter into all these servers. Raises `EngineError` where one that is there has it not."""
        name, began = self.label(version, folder), time.monotonic()
        self.versions[name] = version
        ends = await asyncio.gather(
            *(replica.add_adapter(version, name, folder) for replica in replicas), return_exceptions=True
        )
        for replica, end in zip(replicas, ends, strict=True):
            if isinstance(end, LoadFailed):
                await replica.endpoint.reconnect()
                await replica.look()
                if replica.is_there:
                    raise EngineError(f"{end}; the server must see the folder {folder}, as the learner does") from end
                logger.warning("%s", end)
            elif isinstance(end, BaseException):
                raise end
        logger.info("adapter of version %d is at %d servers after %.2f s", version, len(ends), time.monotonic() - began)

    async def forget_old(self, replicas: Sequence[Replica], version: int) -> None:
        """Drop the adapters of this run that have left the window, whoever loaded them."""
        await asyncio.gather(*(self._forget(replica, version) for replica in replicas))
        for name in [name for name, old in self.versions.items() if old < version - self._max_staleness]:
            del self.versions[name]

    async def _forget(self, replica: Replica, version: int) -> None:
        try:
            for name in await names_at(replica.endpoint, LOOK_SECONDS):
                old = self._version_of(name) if "@" in name else None
                if old is not None and old < version - self._max_staleness:
                    await replica.drop_adapter(version, name)
        except (Unreachable, LoadFailed, *ODD) as error:
            logger.warning("old adapters stay at %s for now: %s", replica.url, error)
