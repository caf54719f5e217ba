"""Serving a published version: load it into the engine, check the probe, and only then acknowledge it.

An engine that answers and keeps the old weights is found here, before a token is sampled under a wrong label.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from agrpo.engines import Engine
from agrpo.errors import EngineError, ProbeMismatch, StoreError, StoreLostWrites
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Acknowledgement, WeightsReady
from agrpo.weights.published import check_published

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05}
"""Largest accepted difference of a probe's log-probs, nats: rounding of the dtype over two different kernels."""
CLEAR_OF_NOISE = 4.0
"""How many times the engine's own rounding two versions must lie apart for its answer to tell which of them it serves."""
MOST_NOISE = {"float32": 3e-5, "bfloat16": 0.1, "float16": 0.02}
"""Nats: more than this between two kernels is not taken for rounding when versions are told apart."""
REMEMBERED = 6
"""Versions whose probes are kept, beside the first."""
LOADS = 5
"""How often a version is loaded into servers that die before its probe."""
LEAST_NOISE = 2e-6
"""Nats: what two kernels differ by in float32 in any case."""


class Serving:
    """Makes versions of one run the ones an engine serves."""

    def __init__(self, folder: RunFolder, engine: Engine, engine_name: str, dtype: str) -> None:
        self._folder = folder
        self._engine = engine
        self._engine_name = engine_name
        self._dtype = dtype
        self._before: list[tuple[WeightsReady, list[dict[int, float]]]] = []
        """Versions whose probes agreed, the first one and the newest, each with what the servers answered."""
        self._noise = LEAST_NOISE

    async def serve(self, ready: WeightsReady) -> None:
        """Load and acknowledge `ready`. Raises `ProbeMismatch` with both numbers, or `StoreLostWrites`."""
        weights = self._folder.filesystem.local_folder(ready.folder)
        if weights is None:
            raise _gone(ready)
        try:
            self._check_weights(weights, ready)
            answers = await self._load(weights, ready)
        except Exception as error:
            # A generator that slept may meet the end of a version that nobody needs any more; the next one is published.
            if isinstance(error, StoreError) or weights.is_dir():
                raise
            raise _gone(ready) from error
        differences = [self._checked(ready, found) for found in answers]
        # What the best of the servers differs by is rounding; what another one differs by may be its old weights.
        self._noise = max(self._noise, min(*differences, MOST_NOISE[self._coarser]))
        by_token = [dict(zip(ready.probe.top_ids, found, strict=True)) for found in answers]
        for found in by_token:
            self._refuse_version_before(ready, found)
        self._remember(ready, by_token)
        difference = max(differences)
        self._folder.write_acknowledgement(
            Acknowledgement(
                engine=self._engine_name,
                version=ready.version,
                acknowledged_at=time.time(),
                probe_difference=difference,
            )
        )

    async def _load(self, weights: Path, ready: WeightsReady) -> list[list[float]]:
        """Load, and ask the probe of every server; all of them may die in between, and come back without the weights."""
        for _ in range(LOADS):
            await self._engine.load(weights, ready.version)
            answers = await self._engine.next_token_logprobs(ready.probe.token_ids, ready.probe.top_ids)
            if answers:
                return answers
        raise EngineError(
            f"version {ready.version} was loaded {LOADS} times, and each time all servers died before they answered its probe; "
            "look into their logs"
        )

    def _check_weights(self, weights: Path, ready: WeightsReady) -> None:
        try:
            check_published(weights, ready)
        except StoreError:
            self._folder.filesystem.forget(ready.folder)
            raise

    def _checked(self, ready: WeightsReady, found: list[float]) -> float:
        """The largest difference of one server's answer from the learner's."""
        expected = ready.probe.top_logprobs
        difference = _largest(zip(found, expected, strict=True))
        tolerance = TOLERANCE[self._coarser]
        if not difference <= tolerance:
            place = max(range(len(found)), key=lambda index: abs(found[index] - expected[index]))
            raise ProbeMismatch(
                f"the engine was told to load version {ready.version} and serves other weights: after the probe's "
                f"{len(ready.probe.token_ids)} tokens it gives token {ready.probe.top_ids[place]} a log-prob of "
                f"{found[place]:.5f}, the learner {expected[place]:.5f}; up to {tolerance} is rounding in {self._engine.dtype}"
            )
        return difference

    @property
    def _coarser(self) -> str:
        """Of the learner's type and the engine's, the one that rounds more."""
        return max(self._dtype, self._engine.dtype, key=lambda dtype: TOLERANCE[dtype])

    def _refuse_version_before(self, ready: WeightsReady, found: dict[int, float]) -> None:
        """A step may change less than the tolerance: an engine that kept other weights of this run is nearer to those.

        Where types are coarse, it answers as it did then, to the digit.
        """
        new = _by_token(ready)
        for before, answers in self._before:
            if before.digest == ready.digest or before.probe.token_ids != ready.probe.token_ids:
                continue
            old = _by_token(before)
            moved = _apart(old, new)
            nearer = moved > CLEAR_OF_NOISE * self._noise and _apart(found, new) > _apart(found, old)
            same = moved > MOST_NOISE[self._coarser] and any(_apart(found, answer) == 0.0 for answer in answers)
            if nearer or same:
                token = max(old.keys() & new.keys(), key=lambda token: abs(found[token] - new[token]))
                raise ProbeMismatch(
                    f"the engine was told to load version {ready.version} and serves version {before.version} still: it gives "
                    f"token {token} a log-prob of {found[token]:.6f} after the probe's tokens, the learner {new[token]:.6f} in "
                    f"version {ready.version} and {old[token]:.6f} in version {before.version}"
                )

    def _remember(self, ready: WeightsReady, answers: list[dict[int, float]]) -> None:
        """Keep the first version and the newest ones to tell an answer from."""
        if all(before.digest != ready.digest for before, _ in self._before):
            self._before = [*self._before[:1], *self._before[1:][-REMEMBERED:], (ready, answers)]


def _apart(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest difference between two answers, over the tokens that both tell of."""
    return _largest((one[token], other[token]) for token in one.keys() & other.keys())


def _by_token(ready: WeightsReady) -> dict[int, float]:
    return dict(zip(ready.probe.top_ids, ready.probe.top_logprobs, strict=True))


def _largest(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest difference of two numbers; not a number where one of them is none."""
    largest = 0.0
    for one, other in pairs:
        difference = abs(one - other)
        largest = difference if not difference <= largest else largest
    return largest


def _gone(ready: WeightsReady) -> StoreLostWrites:
    return StoreLostWrites(
        f"version {ready.version} was published as {ready.folder}, which is gone; `agrpo resume` writes it again"
    )
