"""A cohort: requests that were admitted together and are decoded in step, one token each at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agrpo.engines.decoding.calls import Row
from agrpo.engines.decoding.model import Model
from agrpo.engines.decoding.sampler import Sampler

LEAST_RUNNING_SHARE = 0.8
"""Below this share of running rows the others are left out: copying the K/V once is cheaper than decoding them on."""


class Cohort:
    """One batch with one K/V cache. Nothing but its requests and the weights decides what it computes."""

    def __init__(self, model: Model, rows: Sequence[Row]) -> None:
        self._model = model
        self._rows = list(rows)
        self._sampler = _sampler_of(rows)
        self._cache = model.new_cache()
        self._mask = self._positions = self._last_ids = torch.empty(0)
        self._begun = False
        self.calls = list(dict.fromkeys(row.call for row in rows))
        """Those that are not over, in order of arrival."""

    @property
    def num_running(self) -> int:
        return sum(not row.ended for row in self._rows)

    def step(self) -> None:
        """Sample one token for every running row."""
        self._leave_out_ended()
        logits = self._decode() if self._begun else self._prefill()
        drawn = self._sampler.draw(logits, [row.next_uniform() for row in self._rows])
        for place, row in enumerate(self._rows):
            if not row.ended:
                row.take(drawn, place, self._model.version)
        self._last_ids = torch.tensor(drawn.ids).unsqueeze(1)
        self._begun = True

    def settle(self) -> None:
        """Answer the calls that ended with this step."""
        self.calls = [call for call in self.calls if not call.settle()]

    def _prefill(self) -> Tensor:
        """Each distinct prompt once, padded on the left; then its K/V for every row that begins with it."""
        prompts = [tuple(row.request.prompt_ids) for row in self._rows]
        place_of = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        longest = max(map(len, place_of))
        ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in place_of])
        self._mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in place_of])
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        logits = self._model.next_logits(ids, self._mask, positions, self._cache)
        self._positions = positions[:, -1:]
        sources = torch.tensor([place_of[prompt] for prompt in prompts])
        self._select(sources)
        return logits[sources]

    def _decode(self) -> Tensor:
        # An ended row keeps its position: the next one may lie beyond the model's last.
        self._positions = self._positions + torch.tensor([[not row.ended] for row in self._rows])
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._rows), 1)], dim=1)
        return self._model.next_logits(self._last_ids, self._mask, self._positions, self._cache)

    def _leave_out_ended(self) -> None:
        running = [place for place, row in enumerate(self._rows) if not row.ended]
        if len(running) >= LEAST_RUNNING_SHARE * len(self._rows):
            return
        self._rows = [self._rows[place] for place in running]
        self._sampler = _sampler_of(self._rows)
        if self._begun:
            places = torch.tensor(running)
            self._last_ids = self._last_ids[places]
            self._select(places)

    def _select(self, places: Tensor) -> None:
        self._mask, self._positions = self._mask[places], self._positions[places]
        self._model.select(self._cache, places)


def _sampler_of(rows: Sequence[Row]) -> Sampler:
    return Sampler([row.request.sampling for row in rows])
