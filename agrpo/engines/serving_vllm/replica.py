"""One server of the engine: whether it is there, which weights it has, and how it takes others.

New weights reach it in four calls, each with a deadline: pause (what runs is kept), load, label, resume. A load that
failed has broken what was there, so the weights before are loaded again before it may go on; where that fails too it
stays paused, since its next forward would be its last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agrpo.engines.serving_vllm.endpoint import Endpoint, Refused, Unreachable
from agrpo.engines.serving_vllm.facts import ODD, ServerFacts, is_paused, names_at
from agrpo.errors import EngineError
from agrpo.threads import on_thread

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
PAUSED_LOOKS = 3
"""In a row: then whoever paused a server did not come to resume it."""
SILENT_LOOKS = 6
"""In a row, of `LOOK_SECONDS` each: then a server that takes connections and says nothing is gone."""
FRESH = "default"
"""What a server calls the weights it was started with."""


class Replica:
    """A server by its URL. Its `label` is what it was last seen to call its weights."""

    def __init__(
        self, url: str, api_key: str | None, load_seconds: float, read_label: Callable[[Endpoint], Awaitable[str]]
    ) -> None:
        self.url = url
        self.give_up: Callable[[str], None] | None = None
        """Has it started again. None: nobody here can."""
        self._read_label = read_label
        self.endpoint = Endpoint(url, api_key)
        """For what it is told and asked about itself."""
        self.prompts = Endpoint(url, api_key)
        """For completions, whose connections no failed word about itself breaks off."""
        self.facts: ServerFacts | None = None
        self.label: str | None = None
        """None: it is not there, or was not looked at yet."""
        self.in_flight = 0
        self.why = "it has not answered yet"
        """Where it is not there: what was seen last."""
        self.died_of: str | None = None
        """The call of a load that it did not survive."""
        self.given: dict[str, Path] = {}
        """Folders of the weights it was given, by label; the newest last."""
        self._load_seconds = load_seconds
        self.vain_looks = 0
        """In a row, at a server that is not there."""
        self.taking = False
        """It is being given weights."""
        self._paused_looks = 0
        self._silent_looks = 0

    @property
    def trouble(self) -> str:
        """Why it cannot be asked, where it is not there."""
        return f"{self.died_of}; since then {self.why}" if self.died_of else self.why

    @property
    def is_there(self) -> bool:
        return self.label is not None

    async def look(self) -> None:
        """See whether it is there, and under which label. One that is silent is taken to be busy for a while."""
        try:
            await self.endpoint.text("/health", LOOK_SECONDS)
            label = await self._read_label(self.endpoint)
            self.label = FRESH if await self._is_left_paused() else label
            self._silent_looks = 0
        except Unreachable as error:
            self._silent_looks += 1
            if self.label is None or not error.silent or self._silent_looks >= SILENT_LOOKS:
                await self._gone(error)
        except (Refused, *ODD):
            self.label = FRESH  # what it lacks is told with all else that it lacks

    async def _is_left_paused(self) -> bool:
        """Whether it has been paused for several looks, and nobody gives it weights: it has to be given them, and resumed."""
        if self.taking or self.facts is None or self.facts.weight_transfer is not None:
            return False
        self._paused_looks = self._paused_looks + 1 if await is_paused(self.endpoint) else 0
        return self._paused_looks >= PAUSED_LOOKS

    async def close(self) -> None:
        await self.endpoint.close()
        await self.prompts.close()

    async def _gone(self, error: Unreachable) -> None:
        """Nothing new is asked of it until it was seen again. What a silent one works on may still come."""
        if self.label is not None:
            logger.warning("server %s is gone: %s", self.url, error)
        self.label, self.why = None, str(error)
        await self.endpoint.reconnect()
        if not error.silent:
            await self.prompts.reconnect()

    @contextmanager
    def carrying(self) -> Generator[None]:
        """Count a request that it works on."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def pause(self, version: int) -> None:
        """Stop between two tokens. Requests wait, and go on under the weights that come."""
        await self._phase("pause", version, self.endpoint.send("/pause?mode=keep", None, self._load_seconds))

    async def load(self, version: int, folder: Path) -> None:
        """Read the weights in `folder`, while paused."""
        if self.facts is not None and self.facts.weight_transfer is not None:
            await self._close_push()
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._phase("load", version, self.endpoint.post("/collective_rpc", body, self._load_seconds))

    async def _close_push(self) -> None:
        """A push that its learner did not live to end is open still, and would mix with what is read. Mostly there is none."""
        try:
            await self.endpoint.send("/finish_weight_update", {}, self._load_seconds)
        except (Unreachable, Refused) as error:
            logger.debug("no push to end at %s: %s", self.url, error)
            await self.endpoint.reconnect()

    async def name(self, version: int, label: str) -> None:
        """Have it call its weights `label`."""
        if not await self._phase("label", version, is_paused(self.endpoint)):
            raise LoadFailed(
                f"version {version} did not reach server {self.url}: it is paused no more, so it was started again meanwhile",
                "label",
            )
        asked = self.endpoint.post("/update_weight_version", {"new_version": label}, self._load_seconds)
        await self._phase("label", version, asked)

    async def disown(self) -> None:
        """Have it call its weights no version, so that they are loaded, and it is resumed: whoever paused it may not come to.

        Where that is a learner that is about to, the label it gives comes later.
        """
        await self.endpoint.post("/update_weight_version", {"new_version": FRESH}, LOOK_SECONDS)
        self.label = FRESH

    async def resume(self, version: int, label: str, folder: Path) -> None:
        """Let it go on. What it has is good, so a call that fails is made once more, on a new connection."""
        try:
            await self.endpoint.send("/resume", None, self._load_seconds)
        except EngineError:
            await self.endpoint.reconnect()
            await self._phase("resume", version, self.endpoint.send("/resume", None, self._load_seconds))
        self.label, self.died_of = label, None
        self.given.pop(label, None)
        self.given[label] = folder

    async def add_adapter(self, version: int, name: str, folder: Path) -> None:
        """Have it serve one more adapter under a name of its own; one it has already is left as it is."""
        body = {"lora_name": name, "lora_path": str(folder)}
        await self._phase(
            "adapter", version, self.endpoint.send("/v1/load_lora_adapter", body, self._load_seconds), but={400}
        )
        if name not in await self._phase("adapter", version, names_at(self.endpoint, self._load_seconds)):
            raise LoadFailed(f"version {version} did not reach server {self.url}: it has no adapter {name}", "adapter")
        self.label = name

    async def drop_adapter(self, version: int, name: str) -> None:
        """Have it forget an adapter; one it does not have is no error."""
        asked = self.endpoint.send("/v1/unload_lora_adapter", {"lora_name": name}, self._load_seconds)
        await self._phase("unload", version, asked, but={404})

    async def recover(self, version: int, label: str, error: EngineError) -> None:
        """After a failure with `version`: serve again what it served before. Raises the error, with what became of it."""
        kept = await self._bring_back(version, label)
        if kept is None and self.give_up is not None:
            await on_thread(partial(self.give_up, self.url))
            raise EngineError(f"{error}; its weights are broken, and it is started again") from error
        if kept is None:
            await self._disown_broken()
            raise EngineError(
                f"{error}; it stays paused, for its weights are broken: start {self.url} again"
            ) from error
        raise EngineError(f"{error}; it serves {kept} again") from error

    async def _disown_broken(self) -> None:
        """What it has is no version any more, whatever it was called: it is asked for nothing until it was given one."""
        try:
            await self.disown()
        except EngineError as error:
            logger.warning("server %s cannot be told that its weights are broken: %s", self.url, error)

    async def _bring_back(self, version: int, failed: str) -> str | None:
        """The label that it serves again, of what it was given before `failed` if there is any; None: it must not go on."""
        await self.endpoint.reconnect()
        newest_first = reversed(list(self.given.items()))
        for label, folder in sorted(newest_first, key=lambda given: given[0] == failed):
            if not await on_thread(folder.is_dir):
                continue
            try:
                await self.pause(version)
                await self.load(version, folder)
                await self.name(version, label)
                await self.resume(version, label, folder)
            except EngineError as error:
                logger.error("server %s cannot be given %s again: %s", self.url, label, error)
                break
            return label
        return None

    async def _phase(self, name: str, version: int, call: Awaitable[Any], but: Set[int] = frozenset()) -> Any:
        """One call of a load; an error says which, and for which version. `but`: what a refusal may answer."""
        began = time.monotonic()
        try:
            return await call
        except LoadFailed:
            raise
        except (EngineError, *ODD) as error:
            if isinstance(error, Refused) and error.status in but:
                return None
            took, told = time.monotonic() - began, str(error)
            if not isinstance(error, EngineError):
                told = f"its answer is not vLLM's ({error!r})"
            raise LoadFailed(
                f"version {version} did not reach server {self.url}: {name} failed after {took:.1f} s: {told}", name
            ) from error


class LoadFailed(EngineError):
    """One of the calls that give a server new weights failed."""

    def __init__(self, message: str, phase: str) -> None:
        super().__init__(message)
        self.phase = phase
