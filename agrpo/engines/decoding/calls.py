"""One `complete(...)` and its requests, from arrival to answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from agrpo.engines.decoding.sampler import Drawn
from agrpo.errors import EngineError
from agrpo.records.rollout import StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest
from agrpo.records.top_tokens import TopTokens


class Call:
    """Requests that are answered together, in order. Its future is what the caller awaits, and may cancel."""

    def __init__(self, requests: Sequence[CompletionRequest], most_tokens: Sequence[int]) -> None:
        self.future: Future[list[TurnRecord]] = Future()
        self.reproducible = any(request.sampling.reproducible for request in requests)
        self.rows = [Row(request, most, self) for request, most in zip(requests, most_tokens, strict=True)]

    def settle(self) -> bool:
        """Answer where every row has ended, leave where nobody waits any more. Whether the call is over."""
        if self.future.cancelled():
            self._end_rows()
        elif all(row.ended for row in self.rows) and self._claimed():
            self.future.set_result([row.record() for row in self.rows])
        return self.future.done()

    def fail(self, error: EngineError) -> None:
        self._end_rows()
        if self._claimed():
            self.future.set_exception(error)

    def _end_rows(self) -> None:
        for row in self.rows:
            row.ended = True

    def _claimed(self) -> bool:
        """Whether an answer is still wanted; then the caller can no longer cancel."""
        return not self.future.done() and self.future.set_running_or_notify_cancel()


class Row:
    """One request while it is answered, and what was sampled for it so far."""

    def __init__(self, request: CompletionRequest, most_tokens: int, call: Call) -> None:
        self.request = request
        self.call = call
        self.ended = False
        self._most_tokens = most_tokens
        # Not a torch.Generator: on the CPU it reads only the low 32 bits of its seed.
        self._random = random.Random(request.seed)
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._top_ids: list[np.ndarray] = []
        self._top_logprobs: list[np.ndarray] = []
        self._candidates: list[list[int]] = []

    def next_uniform(self) -> float:
        """In [0, 1), with 53 bits: the randomness of the next token, whatever else is decoded."""
        return self._random.random()

    def take(self, drawn: Drawn, place: int, version: int) -> None:
        """Keep the token that was drawn at `place`."""
        token = drawn.ids[place]
        self._ids.append(token)
        self._logprobs.append(drawn.logprobs[place])
        self._versions.append(version)
        if wanted := self.request.sampling.num_sampler_logprobs:
            self._top_ids.append(drawn.top.ids[place, :wanted])
            self._top_logprobs.append(drawn.top.logprobs[place, :wanted])
        if self.request.sampling.truncated:
            self._candidates.append(drawn.candidates[place])
        self.ended = token in self.request.stop_ids or len(self._ids) >= self._most_tokens

    def record(self) -> TurnRecord:
        stopped = bool(self._ids) and self._ids[-1] in self.request.stop_ids
        return TurnRecord(
            prompt_ids=list(self.request.prompt_ids),
            output_ids=self._ids,
            output_log_probs=self._logprobs,
            output_sampling_mask=self._candidates if self.request.sampling.truncated else None,
            output_sampler_logprobs=self._top(),
            output_versions=self._versions,
            stop_reason=StopReason.STOP if stopped else StopReason.LENGTH,
        )

    def _top(self) -> TopTokens | None:
        if not self.request.sampling.num_sampler_logprobs:
            return None
        if not self._top_ids:
            return TopTokens.joined([])
        return TopTokens(np.stack(self._top_ids), np.stack(self._top_logprobs))
