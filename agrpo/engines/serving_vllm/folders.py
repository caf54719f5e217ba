"""Whole weights on their way to servers: as a folder that both sides see, to all of them before any goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agrpo.engines.serving_vllm.endpoint import Endpoint, Unreachable
from agrpo.engines.serving_vllm.facts import ODD, is_paused
from agrpo.engines.serving_vllm.replica import FRESH, LOOK_SECONDS, LoadFailed, Replica
from agrpo.errors import EngineError

logger = logging.getLogger(__name__)

KEPT = 2
"""Folders remembered per server: what it serves, and what it served before."""


class FolderDelivery:
    """vLLM's `reload_weights`, with requests kept in flight."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        """Version by label, of all that was delivered."""

    async def read_label(self, endpoint: Endpoint) -> str:
        """What a server calls the weights it has."""
        return str((await endpoint.get("/weight_info", LOOK_SECONDS))["weight_version"])

    def label(self, version: int, folder: Path) -> str:
        """What a server is to call these weights. The folder's name holds their digest."""
        return f"{version}@{folder.name}"

    def model(self, label: str | None) -> str | None:
        """The name to ask for; None: the base model's."""
        return None

    async def is_left_paused(self, replica: Replica) -> bool:
        """Whether a server waits for somebody to resume it. One that does not answer is looked at again."""
        try:
            return await is_paused(replica.endpoint)
        except (Unreachable, *ODD):
            return False

    async def deliver(self, replicas: Sequence[Replica], version: int, folder: Path) -> None:
        """Give the weights to all these servers. Raises `EngineError` where one has them not, and none is left half-way.

        A server that dies meanwhile has to be given them when it is back; the others go on.
        """
        label, began = self.label(version, folder), time.monotonic()
        self.versions[label] = version
        paused = await self._all(replicas, label, lambda replica: replica.pause(version))
        loaded = await self._all(paused, label, lambda replica: replica.load(version, folder))
        named = await self._all(loaded, label, lambda replica: replica.name(version, label))
        resumed = await self._all(named, label, lambda replica: replica.resume(version, label, folder))
        for replica in resumed:
            for old in list(replica.given)[:-KEPT]:
                del replica.given[old]
        logger.info(
            "version %d has reached %d of %d servers in %.2f s",
            version,
            len(resumed),
            len(replicas),
            time.monotonic() - began,
        )

    async def _all(
        self, replicas: Sequence[Replica], label: str, phase: Callable[[Replica], Awaitable[None]]
    ) -> list[Replica]:
        """The servers that are through a phase. Where one failed and still is there, all take the version before again."""
        ends = await asyncio.gather(*(phase(replica) for replica in replicas), return_exceptions=True)
        failed: list[tuple[Replica, LoadFailed]] = []
        for replica, end in zip(replicas, ends, strict=True):
            if isinstance(end, LoadFailed):
                await self._see(replica, end, failed)
            elif isinstance(end, BaseException):
                raise end
        if failed:
            await self._back(replicas, label, failed)
        return [replica for replica, end in zip(replicas, ends, strict=True) if end is None]

    async def _see(self, replica: Replica, error: LoadFailed, failed: list[tuple[Replica, LoadFailed]]) -> None:
        """A server that no longer answers at all is gone, and no failure of the weights."""
        label = replica.label
        await replica.endpoint.reconnect()
        try:
            await replica.look()
        except EngineError as lost:
            logger.warning("%s", lost)
        if not replica.is_there or replica.label == FRESH != label or await _has_begun_again(replica, error.phase):
            replica.died_of = str(error)
            logger.warning("%s", error)
            return
        replica.label = label
        failed.append((replica, error))

    async def _back(self, replicas: Sequence[Replica], label: str, failed: list[tuple[Replica, LoadFailed]]) -> None:
        (replica, error), version = failed[0], self.versions[label]
        others = [other for other in replicas if other is not replica and other.is_there]
        await asyncio.gather(*(other.recover(version, label, error) for other in others), return_exceptions=True)
        await replica.recover(version, label, error)
        raise EngineError(str(error))


async def _has_begun_again(replica: Replica, phase: str) -> bool:
    """Whether a server is paused no more in a phase in which nobody resumes it: only a new start has ended its pause."""
    try:
        return phase in ("load", "label") and not await is_paused(replica.endpoint)
    except (EngineError, *ODD):
        return False
