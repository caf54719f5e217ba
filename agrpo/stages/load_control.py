"""Load control: how many rollouts the engine's servers bear at once, by what they say of themselves (A-101 to A-106).

And what they said, added up for the group that ends next. Nothing here waits or reads.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from agrpo.records.pace import Pace
from agrpo.records.pressure import Pressure

ROOM = 0.6
"""Share of the KV cache in use below which the cap may grow, by a quarter."""
FULL = 0.8
"""Share above which it shrinks, by three tenths."""
LOST_POLLS = 3
"""Polls in a row without an answer after which servers that once spoke are taken to speak no more. A busy one may miss a
poll, and that is no moment to send it all that the hard ceiling allows."""


class LoadControl:
    """The live cap: from what the KV cache holds up and down by its usage, always within 1 and the hard ceiling."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.cap = ceiling
        """Most rollouts that may be in flight now."""
        self._controlled: int | None = None
        """The cap as it was when the servers last spoke."""
        self._changed_at = 0
        """Rollouts that had ended when it changed last: those that ended under another cap say nothing of this one."""
        self._lost = 0

    def see(self, pressure: Pressure | None, ended: int) -> int:
        """The cap after this poll; `ended`: rollouts that have ended so far. None: the servers did not speak.

        It stays while all servers are away: what they said before they went is no reason to change it again.
        """
        if pressure is None or pressure.kv_usage is None:
            self._lost += 1
            if self._lost >= LOST_POLLS:
                self.cap = self.ceiling
            return self.cap
        if not pressure.is_new:
            return self.cap
        self._lost = 0
        if self._controlled is None:
            found = self._first(pressure)
        else:
            found = self._next(self._controlled, pressure.kv_usage, pressure.queued, ended=ended - self._changed_at)
        if found != self._controlled:
            self._controlled, self._changed_at = found, ended
        self.cap = found
        return self.cap

    def _first(self, pressure: Pressure) -> int:
        """As many rollouts of full length as the caches hold; the ceiling where that is not said."""
        if not pressure.cache_tokens or not pressure.max_model_len:
            return self.ceiling
        return self._within(pressure.cache_tokens // pressure.max_model_len)

    def _next(self, cap: int, kv_usage: float, queued: int, *, ended: int) -> int:
        """`ended`: rollouts, under this cap. Rounded down, but up by one at least: a cap of 1 is to grow too."""
        if kv_usage > FULL:
            return self._within(cap * 7 // 10)
        if kv_usage < ROOM and not queued and ended >= cap:
            return self._within(max(cap + 1, cap * 5 // 4))
        return cap

    def _within(self, cap: int) -> int:
        return max(1, min(cap, self.ceiling))


class Tally:
    """What the servers said since a group ended last, and how often they were asked again."""

    def __init__(self) -> None:
        self._before: Pressure | None = None
        self._polls: list[Pressure] = []
        self._usages: list[float] = []
        self._retries: int | None = None
        """As of the last word since then. None: there was none."""
        self._retries_before = 0

    def add(self, pressure: Pressure) -> None:
        """A poll; where the servers did not speak, only the engine's own count is of use."""
        self._retries = pressure.retries
        if pressure.is_new and pressure.kv_usage is not None:
            self._polls.append(pressure)
            self._usages.append(pressure.kv_usage)

    def take(self, pace: Pace) -> Pace:
        """The pace with what was said, and begin anew; as it is where nobody spoke.

        Counters are told by how much they rose from poll to poll. Preemptions are the servers' own: they count from the
        first poll on, and where they fall, a server was started again and counts from there on.
        """
        if self._retries is not None:
            pace = replace(pace, retries=self._retries - self._retries_before)
            self._retries_before, self._retries = self._retries, None
        if not self._polls:
            return pace
        polls, usages, before = self._polls, self._usages, self._before
        self._polls, self._usages, self._before = [], [], polls[-1]
        said = [*([] if before is None else [before]), *polls]
        return replace(
            pace,
            num_polls=len(polls),
            kv_cache_usage=fmean(usages),
            running_requests=fmean(poll.running for poll in polls),
            queued_requests=fmean(poll.queued for poll in polls),
            preemptions=sum(max(0, after.preemptions - earlier.preemptions) for earlier, after in pairwise(said)),
        )
