"""All servers of the engine: which of them may be asked, and how long it is borne that none may."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

from agrpo.engines.serving_vllm.endpoint import Unreachable
from agrpo.engines.serving_vllm.facts import ODD, ServerFacts
from agrpo.engines.serving_vllm.replica import FRESH, Replica
from agrpo.errors import EngineLost, StoreError
from agrpo.threads import on_thread

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Until the second look at a server that is not there; each pause is twice as long as the one before."""
LONGEST_LOOK_SECONDS = 10.0
CARE_SECONDS = 5.0
"""Between two looks at servers that are."""


class Fleet:
    """Replicas by URL, watched by a task of their own while the engine is open."""

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        make: Callable[[str], Replica],
        welcome: Callable[[Replica], Awaitable[None]],
        version_of: Callable[[str], int | None],
        *,
        start_seconds: float,
        outage_seconds: float,
    ) -> None:
        """`welcome`: awaited for each server that is seen for the first time; what it raises ends the engine.

        `version_of`: the version of this run that a label stands for, whoever gave it to a server.
        """
        self._urls = urls
        self._make = make
        self._welcome = welcome
        self._version_of = version_of
        self._start_seconds = start_seconds
        self._outage_seconds = outage_seconds
        self.replicas: dict[str, Replica] = {}
        self.label: str | None = None
        """What servers must call their weights to be asked; None before the first load."""
        self.known_labels: set[str] = set()
        self._due_at: dict[str, float] = {}
        """When each server is looked at next."""
        self._changed = asyncio.Event()
        self._began_at = 0.0
        self._has_looked = False
        self._deliveries = 0
        self._lost_at: float | None = None
        self._has_answered = False
        self._watching: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    @property
    def there(self) -> list[Replica]:
        """Servers that answer."""
        return [replica for replica in self.replicas.values() if replica.is_there and replica.facts is not None]

    @property
    def ready(self) -> list[Replica]:
        """Servers that answer and have the weights, or newer ones that the learner has pushed."""
        return [replica for replica in self.there if self.label is not None and self.has(replica, self.label)]

    def has(self, replica: Replica, label: str) -> bool:
        """Whether a server has these weights of this run, or newer ones."""
        if replica.label is None or replica.label == label:
            return replica.label == label
        version, wanted = self._version_of(replica.label), self._version_of(label)
        return version is not None and wanted is not None and version > wanted

    @property
    def facts(self) -> list[ServerFacts]:
        return [replica.facts for replica in self.replicas.values() if replica.facts is not None]

    def open(self) -> None:
        """Begin to watch; a second time does nothing."""
        if self._watching is None:
            self._began_at = time.monotonic()
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for replica in self.replicas.values():
            await replica.close()

    async def await_any(self, which: Callable[[], Sequence[Replica]]) -> Sequence[Replica]:
        """Servers that `which` names, as soon as there are some. Raises `EngineLost` after too long an outage."""
        self.open()
        while True:
            if self._error is not None:
                raise self._error
            found = which()
            if found:
                self._lost_at = None
                return found
            if self._deliveries:
                self._lost_at = None  # servers that take weights are there
            elif self._has_looked:
                self._bear()
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue

    async def look_again(self) -> None:
        """See now what the servers call their weights. Raises `EngineLost` where somebody else gave them some."""
        await asyncio.gather(*(self.look(replica) for replica in self.there))

    def notify(self) -> None:
        """Something about the servers is other than it was."""
        self._changed.set()

    @contextmanager
    def delivery(self, replicas: Sequence[Replica]) -> Generator[None]:
        """While these servers take weights nobody is missed, nor taken to be left paused."""
        self._deliveries += 1
        for replica in replicas:
            replica.taking = True
        try:
            yield
        finally:
            self._deliveries -= 1
            for replica in replicas:
                replica.taking = False

    def _bear(self) -> None:
        now = time.monotonic()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if self._has_answered:
            gone, limit, setting = now - self._lost_at, self._outage_seconds, "engine.outage_seconds"
        else:
            gone, limit, setting = now - self._began_at, self._start_seconds, "engine.start_seconds"
        if gone > limit:
            told = "; ".join(
                f"{replica.url}: {f'serves {replica.label}, not {self.label}' if replica.is_there else replica.trouble}"
                for replica in self.replicas.values()
            )
            raise EngineLost(
                f"no vLLM server has been there for {gone:.0f} s, and {limit:g} s is the limit ({setting}): "
                f"{told or 'none is named yet'}. Start them, then `agrpo resume` this run"
            )

    async def _watch(self) -> None:
        reconciled_at = 0.0
        while True:
            try:
                now = time.monotonic()
                if now - reconciled_at >= CARE_SECONDS or not self.replicas or len(self.there) < len(self.replicas):
                    reconciled_at = now
                    await self._reconcile()
                due = [one for one in list(self.replicas.values()) if now >= self._due_at.get(one.url, 0.0)]
                await self._look_at(due)
                self._has_looked = True
                self._due_at |= {replica.url: time.monotonic() + self._pause_of(replica) for replica in due}
            except StoreError as error:
                logger.warning("where the servers are cannot be read, and is read again: %s", error)
            except Exception as error:  # whoever waits for a server is told, whatever it is
                self._error = error
                self.notify()
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at(self, replicas: Sequence[Replica]) -> None:
        """Look at all of these. Raises `EngineLost` with what all of them lack, or the first other error."""
        ends = await asyncio.gather(*(self.look(replica) for replica in replicas), return_exceptions=True)
        errors = [end for end in ends if isinstance(end, BaseException)]
        lost = [str(error) for error in errors if isinstance(error, EngineLost)]
        if len(lost) > 1:
            raise EngineLost("; ".join(lost))
        if errors:
            raise errors[0]

    def _pause_of(self, replica: Replica) -> float:
        """Seconds until a server is looked at again: ever longer while it is gone."""
        if replica.is_there:
            replica.vain_looks = 0
            return CARE_SECONDS
        pause = min(LOOK_SECONDS * 2.0**replica.vain_looks, LONGEST_LOOK_SECONDS)
        replica.vain_looks += 1
        if self._has_answered or replica.vain_looks == 1:
            logger.warning("server %s is not there (%s); looking again in %.1f s", replica.url, replica.trouble, pause)
        return pause

    async def _reconcile(self) -> None:
        """Take up servers that are new, and forget those that have gone for good."""
        urls = await on_thread(self._urls)
        for url in urls:
            if url not in self.replicas:
                self.replicas[url] = self._make(url)
        for url in [url for url, replica in self.replicas.items() if url not in urls and not replica.is_there]:
            await self.replicas.pop(url).close()

    async def look(self, replica: Replica) -> None:
        """See whether a server is there, what it is, and under which label."""
        before = replica.label
        await replica.look()
        if replica.is_there and replica.facts is None:
            await self._greet(replica)
        if replica.label is None:
            if before is not None:
                self._due_at.pop(replica.url, None)
            return
        self._has_answered = True
        if replica.label != before:
            logger.info("server %s answers, with the weights %s", replica.url, replica.label)
            self._refuse_strangers(replica, before)
            self.notify()

    async def _greet(self, replica: Replica) -> None:
        try:
            await self._welcome(replica)
        except Unreachable as error:
            replica.label, replica.why = None, str(error)
        except ODD as error:
            raise EngineLost(
                f"{replica.url} answers, and not as a vLLM server does ({error!r}); mend engine.base_urls"
            ) from error

    def _refuse_strangers(self, replica: Replica, before: str | None) -> None:
        """Somebody else gives this server weights: its answers are nobody's."""
        if before is None or replica.label in (None, FRESH, *self.known_labels) or before not in self.known_labels:
            return
        if self._version_of(replica.label) is not None:
            self.known_labels.add(replica.label)  # the learner has pushed it
            return
        raise EngineLost(
            f"server {replica.url} was given the weights {replica.label} by somebody else, while this run uses it; one run, or "
            "one generator, needs servers of its own"
        )
