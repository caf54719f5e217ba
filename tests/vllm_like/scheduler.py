"""The engine behind the protocol: what runs, what waits, what a pause does to it, and under which label it samples."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from tests.vllm_like.network import EngineDied, Network, WorkerFailed
from tests.vllm_like.options import Options
from tests.vllm_like.sequence import Prefixes, Sequence

logger = logging.getLogger(__name__)

BEGUN = "default"
"""Label of the weights that a server starts with."""


class EngineDead(Exception):
    """There is no engine any more; the server ends soon."""


class Scheduler:
    """Steps every running sequence once, again and again. Lives on one asyncio loop."""

    def __init__(self, path: Path, options: Options) -> None:
        self.network = Network(path, options)
        self.options = options
        self.label = BEGUN
        self.instance = str(time.time_ns())
        """Names this one start of the server."""
        self.paused = False
        self.died = asyncio.Event()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.prefixes = Prefixes(block_size=options.block_size)
        self.finished: Counter[str] = Counter()
        self.preemptions = self.generated = self.prompted = self.num_resets = 0
        self._work = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def max_model_len(self) -> int:
        return self.options.max_model_len or self.network.max_positions

    @property
    def blocks_in_use(self) -> int:
        return sum(self._blocks(sequence) for sequence in self.running)

    async def complete(self, sequences: list[Sequence]) -> None:
        """Until all have ended. Who is cancelled while waiting has them aborted. Raises `EngineDead`."""
        self._check_alive()
        self.prompted += sum(len(sequence.prompt) for sequence in sequences)
        self.waiting.extend(sequences)
        self._work.set()
        try:
            for sequence in sequences:
                await sequence.done
        finally:
            self._end(sequences, "abort")

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """End those requests as they are; all of them for None. How many there were."""
        wanted = None if request_ids is None else {*request_ids}
        found = [each for each in [*self.running, *self.waiting] if wanted is None or each.request_id in wanted]
        self._end(found, "abort")
        return len(found)

    async def pause(self, mode: str, *, clear_cache: bool) -> None:
        self._check_alive()
        if mode == "wait":
            held, self.waiting = self.waiting, deque()
            while self.running:
                await asyncio.sleep(0.001)
            self.waiting = held + self.waiting
        self.paused = True
        if mode == "abort":
            self.abort(None)
        if clear_cache:
            self._preempt_all()
            self.prefixes.clear()
            self.num_resets += 1
        await asyncio.sleep(0.02)

    def resume(self) -> None:
        self._check_alive()
        self.paused = False
        self._work.set()

    def reload(self, folder: str) -> None:
        self._check_alive()
        self.network.reload(folder)

    def add_adapter(self, name: str, path: str) -> None:
        self._check_alive()
        if not self.options.enable_lora:
            raise WorkerFailed("LoRA is not enabled. Use --enable-lora to enable LoRA.")
        self.network.load_adapter(name, path, self.options.max_lora_rank)

    def die(self) -> None:
        """Answer everything in flight with an error, and nothing after it."""
        self.died.set()
        for sequence in [*self.running, *self.waiting]:
            if not sequence.done.done():
                sequence.done.set_exception(EngineDead)
        self.running.clear()
        self.waiting.clear()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        for sequence in [*self.running, *self.waiting]:
            sequence.done.cancel()

    def _check_alive(self) -> None:
        if self.died.is_set():
            raise EngineDead

    async def _run(self) -> None:
        with torch.inference_mode():
            while not self.died.is_set():
                if self.paused or not (self.running or self.waiting):
                    self._work.clear()
                    await self._work.wait()
                    continue
                self._admit()
                try:
                    self._step()
                except Exception:
                    logger.exception("EngineCore encountered a fatal error")
                    self.die()
                await asyncio.sleep(self.options.step_seconds)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.options.max_num_seqs:
            if self.running and self.blocks_in_use + self._blocks(self.waiting[0]) > self.options.num_blocks:
                return
            self.running.append(self.waiting.popleft())

    def _step(self) -> None:
        for sequence in list(self.running):
            try:
                model = self.network.model(sequence.adapter)
            except EngineDied:
                self.die()
                return
            processed = self.options.logprobs_mode == "processed_logprobs"
            sequence.step(model, self.label, self.prefixes, self._owner(sequence), processed=processed)
            self.generated += 1
            self._look(sequence)
        while len(self.running) > 1 and self.blocks_in_use > self.options.num_blocks:
            self._preempt(self.running[-1])

    def _look(self, sequence: Sequence) -> None:
        """End what has come to its end."""
        token = sequence.ids[-1]
        if token in self.network.end_ids and not sequence.params.ignore_eos:
            self._end([sequence], "stop")
        elif token in sequence.params.stop_token_ids:
            self._end([sequence], "stop", token)
        elif len(sequence.ids) >= sequence.params.max_tokens or sequence.length >= self.max_model_len:
            self._end([sequence], "length")

    def _end(self, sequences: Iterable[Sequence], reason: str, stop_reason: int | None = None) -> None:
        for sequence in sequences:
            if sequence in self.running:
                self.running.remove(sequence)
            elif sequence in self.waiting:
                self.waiting.remove(sequence)
            else:
                continue
            self.finished[reason] += 1
            sequence.end(reason, stop_reason)

    def _preempt_all(self) -> None:
        seeded = any(sequence.params.seed is not None for sequence in self.running)
        for sequence in reversed(list(self.running)):
            self._preempt(sequence)
        if seeded and self.options.device == "cpu":
            self.die()  # RuntimeError: CPU Generator does not use offset

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.forget()
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _owner(self, sequence: Sequence) -> object:
        name = sequence.adapter
        return None if name is None else (name, self.network.path_of(name))

    def _blocks(self, sequence: Sequence) -> int:
        return -(-sequence.length // self.options.block_size)
