"""The load watch: asks the engine's servers how full they are, beside the generator's loop, and sets the slots by it."""

from __future__ import annotations

import asyncio
import logging

from agrpo.engines import Engine
from agrpo.records.pace import Pace
from agrpo.records.pressure import Pressure
from agrpo.stages.load_control import LoadControl, Tally
from agrpo.stages.slots import Slots

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""From poll to poll (A-101)."""
ASK_SECONDS = 5.0
"""The longest that one may take."""


class LoadWatch:
    """Keeps `slots.capacity` at the live cap. On one asyncio loop."""

    def __init__(self, engine: Engine, slots: Slots) -> None:
        self._engine = engine
        self._slots = slots
        self._control = LoadControl(slots.capacity)
        self._tally = Tally()
        self._fails = False

    @property
    def ceiling(self) -> int:
        return self._control.ceiling

    async def watch(self) -> None:
        """Look every five seconds, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Ask once. Servers that do not answer, or answer what is no load, are no reason to stop: nothing is known then."""
        pressure = await self._asked()
        if pressure is not None:
            self._tally.add(pressure)
        before = self._control.cap
        cap = self._control.see(pressure, self._slots.ended)
        self._slots.capacity = cap
        if cap != before:
            told = "the servers do not say how full they are"
            if pressure is not None and pressure.kv_usage is not None:
                told = f"KV cache {pressure.kv_usage:.0%} full, {pressure.queued} requests queued"
            logger.info("rollouts in flight: at most %d from now on, %d before (%s)", cap, before, told)

    def told(self, pace: Pace) -> Pace:
        """The pace of the group that ends now, with what was said since the one before it."""
        return self._tally.take(pace)

    async def _asked(self) -> Pressure | None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                pressure = await self._engine.pressure()
        except Exception as error:
            # Rollouts show whether a server works; how full it is decides how many there are, and nothing else.
            if not self._fails:
                why = "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
                logger.warning("the load of the engine's servers is not known: %s; asked again and again", why)
            self._fails = True
            return None
        self._fails = False
        return pressure
