"""Slots: how many rollouts are in flight to the engine at once, and how many may be."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Slots:
    """A rollout keeps its slot to its end, between turns and during tool calls too (A-107). First come, first served.

    A lower `capacity` takes no slot away: what runs goes on, and who comes later waits (A-104). On one asyncio loop.
    """

    def __init__(self, capacity: int) -> None:
        self.in_use = 0
        self.ended = 0
        """Slots that were given back."""
        self._capacity = capacity
        self._waiting: deque[Slot] = deque()

    @property
    def capacity(self) -> int:
        return self._capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._capacity = capacity
        self._hand_out()

    @property
    def are_free(self) -> bool:
        """Whether who comes now need not wait."""
        return self.in_use < self._capacity and not self._waiting

    def queue(self, number: int) -> list[Slot]:
        """Places in the queue for so many slots; each is to be closed in the end."""
        places = [Slot(self) for _ in range(number)]
        self._waiting += places
        self._hand_out()
        return places

    async def grant_all(self, places: list[Slot]) -> None:
        """Wait until all of these are granted. They are given back together.

        Where they are more than the capacity, the rest is granted beyond it once nobody else has one: else they would wait for
        each other.
        """
        for place in places:
            place.company = places
        self._hand_out()
        for place in places:
            await asyncio.shield(place.granted)

    def give_back(self, place: Slot) -> None:
        """Let the next one in, or leave the queue."""
        if place.granted.done():
            self.in_use -= 1
            self.ended += 1
        else:
            self._waiting.remove(place)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (self.in_use < self._capacity or self._waits_for_itself(self._waiting[0])):
            self.in_use += 1
            self._waiting.popleft().granted.set_result(None)

    def _waits_for_itself(self, place: Slot) -> bool:
        return 0 < self.in_use == sum(one.is_held for one in place.company)


class Slot:
    """One rollout's place: `async with` waits for the slot and gives it back."""

    def __init__(self, slots: Slots) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.company: list[Slot] = []
        """Places that are given back with this one; see `Slots.grant_all`."""
        self.slots = slots
        self._closed = False

    @property
    def is_held(self) -> bool:
        return self.granted.done() and not self._closed

    async def __aenter__(self) -> None:
        await asyncio.shield(self.granted)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the slot back, or leave the queue; a second time does nothing."""
        if not self._closed:
            self._closed = True
            self.slots.give_back(self)
