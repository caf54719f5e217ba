"""One completion in the making: its tokens, its K/V, and under which label of weights each token came."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from agrpo.engines.decoding.model import Model
from tests.vllm_like.drawing import Drawn, Params, draw

NUM_PREFIXES = 64


@dataclass(kw_only=True)
class Prefixes:
    """K/V of the beginnings of prompts, in whole blocks. It knows nothing of weights: whoever changes them clears it."""

    block_size: int
    queries: int = 0
    hits: int = 0
    kept: OrderedDict[tuple[object, ...], Any] = field(default_factory=OrderedDict)

    def find(self, owner: object, ids: list[int]) -> tuple[int, Any]:
        """How many of the ids have K/V here, and a copy of it. The last id never has."""
        self.queries += len(ids)
        for length in range((len(ids) - 1) // self.block_size * self.block_size, 0, -self.block_size):
            found = self.kept.get((owner, *ids[:length]))
            if found is not None:
                self.hits += length
                return length, copy.deepcopy(found)
        return 0, None

    def keep(self, owner: object, ids: list[int], cache: Any) -> None:
        length = (len(ids) - 1) // self.block_size * self.block_size
        if length and (owner, *ids[:length]) not in self.kept:
            part = copy.deepcopy(cache)
            part.crop(length - len(ids))
            self.kept[(owner, *ids[:length])] = part
            if len(self.kept) > NUM_PREFIXES:
                self.kept.popitem(last=False)

    def clear(self) -> None:
        self.kept.clear()


class Sequence:
    """Belongs to the scheduler's loop."""

    def __init__(self, request_id: str, index: int, prompt: list[int], params: Params, adapter: str | None) -> None:
        self.request_id = request_id
        self.index = index
        self.prompt = prompt
        self.params = params
        self.adapter = adapter
        self.ids: list[int] = []
        self.drawn: list[Drawn] = []
        self.labels: list[str] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._random = random.Random(params.seed)
        self._cache: Any = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.ids)

    def step(self, model: Model, label: str, prefixes: Prefixes, owner: object, *, processed: bool) -> None:
        """Draw one token under the weights of now."""
        logits = self._decode(model) if self._cache is not None else self._prefill(model, prefixes, owner)
        drawn = draw(logits, self.params, self._random.random(), processed=processed)
        self.ids.append(drawn.token)
        self.drawn.append(drawn)
        self.labels.append(label)

    def forget(self) -> None:
        """Lose the K/V: all of it is computed again, under the weights of then."""
        self._cache = None

    def end(self, finish_reason: str, stop_reason: int | None = None) -> None:
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        self._cache = None
        if not self.done.done():
            self.done.set_result(None)

    def spans(self) -> list[dict[str, Any]]:
        """The labels as the protocol tells them."""
        found: list[dict[str, Any]] = []
        for label, run in groupby(self.labels):
            start = found[-1]["end"] if found else 0
            found.append({"version": label, "start": start, "end": start + len(list(run))})
        return found

    def _prefill(self, model: Model, prefixes: Prefixes, owner: object) -> torch.Tensor:
        ids = [*self.prompt, *self.ids]
        known, cache = prefixes.find(owner, ids)
        self._cache = model.new_cache() if cache is None else cache
        logits = self._forward(model, ids[known:], len(ids))
        prefixes.keep(owner, ids, self._cache)
        return logits

    def _decode(self, model: Model) -> torch.Tensor:
        return self._forward(model, self.ids[-1:], self.length)

    def _forward(self, model: Model, ids: list[int], length: int) -> torch.Tensor:
        positions = torch.arange(length - len(ids), length).unsqueeze(0)
        mask = torch.ones(1, length, dtype=torch.long)
        return model.next_logits(torch.tensor([ids]), mask, positions, self._cache)[0]
