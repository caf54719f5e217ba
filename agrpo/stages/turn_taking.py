"""The generator's turn at its servers: it gives them weights only while no learner pushes some, and says so meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Set
from contextlib import asynccontextmanager

from agrpo.config import RunConfig
from agrpo.engines.vllm import Vllm
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.turns import Turns
from agrpo.records.progress import WeightsReady
from agrpo.records.turns import GeneratorTurn

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.02
PHASES = 5
"""Of a push, each within `engine.load_seconds`: join, pause, transfer, resume, and what brings the weights of before back."""


class TurnTaking:
    """One generator's. Nothing is written or read for an engine into which nobody pushes."""

    def __init__(self, folder: RunFolder, config: RunConfig, incarnation: str) -> None:
        engine = config.engine
        self._folder = folder
        self._turns = Turns(folder) if isinstance(engine, Vllm) and engine.weights != "filesystem" else None
        self._incarnation = incarnation
        self._longest_push = PHASES * engine.load_seconds if isinstance(engine, Vllm) else 0.0

    @asynccontextmanager
    async def taken(self, version: int) -> AsyncGenerator[None]:
        """Hold the servers for the block, which gives them a version; wait first until no push is under way."""
        if self._turns is None:
            yield
            return
        await self._take(self._turns, version)
        try:
            yield
        finally:
            self._turns.write(GeneratorTurn(incarnation=self._incarnation))

    def first(self, newest: WeightsReady, serving: WeightsReady | None, proved: Set[int]) -> WeightsReady:
        """The version to serve next: one that was pushed before the newest, while what it sampled still awaits its proof."""
        turn = self._turns.learner() if self._turns is not None else None
        if turn is None or turn.pushed is None or serving is None or turn.pushed in proved:
            return newest
        if serving.version < turn.pushed < newest.version:
            return self._folder.version(turn.attempt, turn.pushed) or newest
        return newest

    def is_there(self, ready: WeightsReady) -> bool:
        """Whether the version was pushed, or is about to be: requests that run see it, whatever the generator does."""
        turn = self._turns.learner() if self._turns is not None else None
        return turn is not None and ready.version in (turn.pushing, turn.pushed)

    async def _take(self, turns: Turns, version: int) -> None:
        began = time.monotonic()
        while True:
            turns.write(GeneratorTurn(incarnation=self._incarnation, loading=version))
            turn = turns.learner()
            if turn is None or turn.pushing is None:
                return
            waited = time.monotonic() - began
            if waited > self._longest_push:
                logger.warning(
                    "the learner has pushed version %d for %.0f s, more than the %.0f s of its phases (engine.load_seconds); "
                    "loading version %d from its folder",
                    *(turn.pushing, waited, self._longest_push, version),
                )
                return
            turns.write(GeneratorTurn(incarnation=self._incarnation))
            await self._until_pushed(turns, turn.pushing, self._longest_push - waited)

    async def _until_pushed(self, turns: Turns, version: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() <= deadline:
            turn = turns.learner()
            if turn is None or turn.pushing != version:
                return
            await asyncio.sleep(LOOK_SECONDS)
