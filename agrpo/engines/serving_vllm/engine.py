"""vLLM servers as an `Engine`: choosing one, asking again, waiting out an outage."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agrpo.config import ModelSection
from agrpo.engines import Needs
from agrpo.engines.serving_vllm import completing
from agrpo.engines.serving_vllm.adapters import AdapterDelivery
from agrpo.engines.serving_vllm.endpoint import Refused, Unreachable
from agrpo.engines.serving_vllm.facts import ODD, ServerFacts, facts_of, findings, is_paused, names_at
from agrpo.engines.serving_vllm.fleet import Fleet
from agrpo.engines.serving_vllm.folders import FolderDelivery
from agrpo.engines.serving_vllm.gauge import Gauge
from agrpo.engines.serving_vllm.replica import FRESH, Replica
from agrpo.engines.serving_vllm.tokens import Vocabulary
from agrpo.engines.serving_vllm.tries import (
    DELIVERIES,
    PROBE_SECONDS,
    SLIPS,
    TRIES,
    pauses,
)
from agrpo.engines.vllm import Vllm
from agrpo.errors import DeadlineExceeded, EngineError, EngineLost, PromptRefused, StaleInFlight
from agrpo.records.pressure import Pressure
from agrpo.records.rollout import TurnRecord
from agrpo.records.sampling import CompletionRequest

logger = logging.getLogger(__name__)


class VllmEngine:
    """An `Engine`."""

    keeps_deadlines: ClassVar[bool] = True

    def __init__(self, part: Vllm, model: ModelSection, needs: Needs) -> None:
        self._part = part
        self._needs = needs
        self._model_dtype = model.served_dtype
        self._served_model = part.served_model or model.path
        self._vocabulary = Vocabulary(model)
        self._key = os.environ.get(part.api_key_variable) if part.api_key_variable else None
        if part.api_key_variable and not self._key:
            raise EngineLost(f"engine.api_key_variable: no environment variable {part.api_key_variable} is set")
        self._delivery = (
            FolderDelivery() if needs.adapter_rank is None else AdapterDelivery(needs.max_staleness, self._version_of)
        )
        self._asking: dict[asyncio.Task[Any], int] = {}
        """Requests to servers, each with the version it began under."""
        self._fleet = Fleet(
            needs.servers if part.serve else part.urls,
            self._replica,
            self._welcome,
            self._version_of,
            start_seconds=part.start_seconds,
            outage_seconds=part.outage_seconds,
        )
        self._retries = 0
        self._has_told_of_cut = False
        self._gauge = Gauge()
        self._names = (f"{uuid.uuid4().hex[:12]}-{number}" for number in itertools.count())
        self._closed = False

    @property
    def dtype(self) -> str:
        return next((facts.dtype for facts in self._fleet.facts if facts.dtype), self._model_dtype)

    @property
    def behind(self) -> bool:
        label = self._fleet.label
        return label is not None and not all(self._fleet.has(replica, label) for replica in self._fleet.there)

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        self._check_open()
        if not requests:
            return []
        if self._fleet.label is None:
            raise EngineError("no weights were loaded yet; load a version before asking for completions")
        tasks = [asyncio.ensure_future(self._complete(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def load(self, folder: Path, version: int) -> None:
        self._check_open()
        await self._fleet.await_any(lambda: self._fleet.there)
        await self._fleet.look_again()
        label = self._delivery.label(version, folder)
        self._fleet.known_labels.add(label)
        self._delivery.versions[label] = version
        for _ in range(DELIVERIES):
            await self._give(label, version, folder)
            if self._fleet.ready:
                break
            # All of them died with the weights on their way; those that come back need them as well.
            await self._fleet.await_any(lambda: self._fleet.there)
        else:
            raise EngineLost(
                f"version {version} was given to servers {DELIVERIES} times, and each time all of them died of it or with it; "
                "look into their logs"
            )
        if isinstance(self._delivery, AdapterDelivery):
            self._abort_below(version - self._needs.max_staleness)
            await self._delivery.forget_old(self._fleet.there, version)

    async def _give(self, label: str, version: int, folder: Path) -> None:
        """Have every server that is there serve these weights."""
        there = self._fleet.there
        # Nobody else gives weights now: who has paused a server that is paused did not come to resume it.
        left = await asyncio.gather(*(self._delivery.is_left_paused(replica) for replica in there))
        lacking = [one for one, paused in zip(there, left, strict=True) if paused or not self._fleet.has(one, label)]
        for replica in self._fleet.there:
            if replica.label == label:
                replica.given[label] = folder  # by an engine before this one
        if lacking:
            with self._fleet.delivery(lacking):
                await self._delivery.deliver(lacking, version, folder)
        self._fleet.label = label
        self._fleet.notify()

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        self._check_open()
        label = self._fleet.label
        alike = await self._fleet.await_any(lambda: [one for one in self._fleet.ready if one.label == label])
        found = await asyncio.gather(*(self._next_token_logprobs(replica, token_ids, of) for replica in alike))
        return [logprobs for logprobs in found if logprobs is not None]

    async def pressure(self) -> Pressure | None:
        return await self._gauge.read(self._fleet.ready, max_model_len=self._max_model_len(), retries=self._retries)

    async def close(self) -> None:
        self._closed = True
        await self._fleet.close()

    async def _complete(self, request: CompletionRequest) -> TurnRecord:
        """Ask until there is an answer; raises what `Engine.complete` says."""
        most = self._most_tokens(request)
        slips, bad, gaps, began = 0, 0, pauses(), time.monotonic()
        for number in itertools.count(1):
            replica = min(await self._fleet.await_any(lambda: self._fleet.ready), key=lambda one: one.in_flight)
            pause = 0.0
            try:
                return await self._ask(replica, request, most)
            except (Unreachable, completing.OtherWeights) as error:
                # A server that is gone, or lost its weights, is waited for however often; one that is ready has a few tries.
                await self._fleet.look(replica)
                slips += replica in self._fleet.ready
                patient = isinstance(error, Unreachable) and error.busy
                if slips >= SLIPS and (
                    not patient or time.monotonic() - began > request.sampling.request_timeout_seconds
                ):
                    raise
                said, pause = error, next(gaps)
            except (EngineLost, PromptRefused, StaleInFlight):
                raise
            except (DeadlineExceeded, EngineError) as error:
                bad += 1
                if bad == TRIES:
                    raise
                said = error
            self._again(request, number, said, pause)
            await asyncio.sleep(pause)
        raise AssertionError("counted to the end of the numbers")

    async def _ask(self, replica: Replica, request: CompletionRequest, most: int) -> TurnRecord:
        # An adapter is asked for by name, whatever else the server has by now.
        facts, label = replica.facts, self._delivery.model(self._fleet.label) or replica.label
        assert facts is not None and label is not None, "a ready server was looked at"
        params = completing.sampling_params(request, most, seeds=facts.told and not facts.on_cpu)
        version, by_token = self._version_of(label), facts.generates and self._needs.adapter_rank is None
        assert version is not None, "a ready server has a version of this run"
        path, body = self._request(facts, request.prompt_ids, params)
        with replica.carrying():
            answer = await self._answer_unless_stale(
                version, self._answer(replica, path, body, request.sampling.request_timeout_seconds)
            )
        version_of = self._version_of if by_token else None
        return completing.turn_of(
            answer, request, most, self._vocabulary.size, version_of=version_of, otherwise=version
        )

    def _version_of(self, label: str) -> int | None:
        """The version of this run that a label stands for, also of one that the learner has pushed."""
        if label not in self._delivery.versions and (version := self._needs.version_of(label)) is not None:
            self._delivery.versions[label] = version
        return self._delivery.versions.get(label)

    async def _answer_unless_stale(self, version: int, answer: Coroutine[Any, Any, Any]) -> Any:
        """What the server answers. Raises `StaleInFlight` where the version leaves the window before it does."""
        task = asyncio.ensure_future(answer)
        self._asking[task] = version
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._asking:
                task.cancel()
                raise
            raise StaleInFlight(
                f"a request begun under version {version} was broken off: that version has left the window of async.max_staleness "
                f"= {self._needs.max_staleness}"
            ) from None
        finally:
            self._asking.pop(task, None)

    def _abort_below(self, version: int) -> None:
        """Break off what runs under versions whose groups would be dropped as too old; the server ends what nobody awaits."""
        for task in [task for task, begun in self._asking.items() if begun < version]:
            del self._asking[task]
            task.cancel()

    async def _answer(
        self,
        replica: Replica,
        path: str,
        body: dict[str, Any],
        seconds: float,
        setting: str = "request_timeout_seconds",
    ) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await replica.prompts.post(path, body, seconds * 2)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from {replica.url} within {seconds:g} s (engine.{setting})") from None
        except Refused as refused:
            if refused.status != 404:
                raise PromptRefused(str(refused)) from None
            await self._check_model(replica, body["model"], refused)
            raise Unreachable(str(refused)) from None

    async def _check_model(self, replica: Replica, model: str, refused: Refused) -> None:
        """After a 404: raises `EngineLost` where the server has no such model any more, `OtherWeights` for an adapter."""
        try:
            if model in await names_at(replica.endpoint, PROBE_SECONDS):
                return
        except ODD as error:
            raise Unreachable(f"{refused}; and what it serves it does not say ({error!r})") from None
        if self._delivery.model(self._fleet.label) is not None:
            replica.label = FRESH
            raise completing.OtherWeights(str(refused))
        raise EngineLost(f"{refused}; it serves no model under that name any more: set engine.served_model")

    def _replica(self, url: str) -> Replica:
        replica = Replica(url, self._key, self._part.load_seconds, self._delivery.read_label)
        replica.give_up = self._needs.give_up if self._part.serve else None
        return replica

    async def _next_token_logprobs(
        self, replica: Replica, token_ids: Sequence[int], of: Sequence[int]
    ) -> list[float] | None:
        """One server's; None where it died of the question, or just before it."""
        assert replica.facts is not None, "a ready server was looked at"
        most = min(replica.facts.probe_logprobs, self._vocabulary.size)
        params = completing.probe_params(most, with_candidates=bool(replica.facts.returns_candidates))
        for number, pause in zip(range(1, SLIPS + 1), pauses(), strict=False):
            path, body = self._request(replica.facts, token_ids, params)
            try:
                answer = await self._answer(replica, path, body, self._part.load_seconds, "load_seconds")
                return completing.logprobs_of(answer, of, most)
            except (EngineLost, PromptRefused):
                raise
            except (DeadlineExceeded, EngineError) as error:
                await self._fleet.look(replica)
                logger.warning("probe, try %d: %s", number, error)
                if replica in self._fleet.ready and number == SLIPS:
                    raise
            if replica not in self._fleet.ready:
                break
            await asyncio.sleep(pause)
        return None

    async def _welcome(self, replica: Replica) -> None:
        """Look whether a server is what the run needs. Raises `EngineLost` with all that is missing."""
        facts = await facts_of(replica.endpoint, self._served_model)
        by_nccl = self._part.weights == "nccl"
        problems = findings(facts, self._needs, self._served_model, own=self._part.serve, by_nccl=by_nccl)
        if not problems:
            problems = await self._vocabulary.problems(replica.endpoint, self._served_model)
        if not problems and await is_paused(replica.endpoint):
            await replica.disown()
        elif not problems:
            problems = await self._trial(replica, facts)
        if problems:
            raise EngineLost("; ".join(problems))
        replica.facts = facts
        if facts.dtype not in (None, self._model_dtype):
            logger.warning(
                "%s serves in %s and the learner trains in %s: their log-probs differ by the rounding of the coarser one",
                *(facts.url, facts.dtype, self._model_dtype),
            )
        if not facts.generates:
            logger.warning(
                "%s was started without --enable-scale-out: tokens sampled across a change of weights are all taken for the "
                "older version",
                facts.url,
            )

    async def _trial(self, replica: Replica, facts: ServerFacts) -> list[str]:
        """One token with the run's own settings: what is refused here would be refused of every prompt."""
        request = CompletionRequest(
            prompt_ids=self._vocabulary.ids[:4], seed=0, sampling=self._needs.sampling, stop_ids=frozenset()
        )
        params = completing.sampling_params(request, 1, seeds=not facts.on_cpu)
        path, body = self._request(facts, request.prompt_ids, params)
        try:
            await replica.endpoint.post(path, body, PROBE_SECONDS)
        except Refused as refused:
            return [f"{refused}; the run's settings of [engine] cannot be sampled there"]
        return []

    def _request(self, facts: ServerFacts, prompt_ids: Sequence[int], params: dict[str, Any]) -> tuple[str, Any]:
        """Where a request goes, and its body."""
        name, model = next(self._names), self._delivery.model(self._fleet.label) or self._served_model
        if facts.generates:
            return completing.GENERATE, completing.generate_body(model, name, prompt_ids, params)
        return completing.COMPLETIONS, completing.completions_body(model, name, prompt_ids, params)

    def _most_tokens(self, request: CompletionRequest) -> int:
        """What `max_completion_length` and the servers leave for the completion. Raises `PromptRefused`."""
        length, limit = len(request.prompt_ids), self._max_model_len()
        if length == 0:
            raise PromptRefused("a prompt of 0 tokens; a model needs at least one token to continue")
        if limit is not None and length >= limit:
            longer = (
                "raise engine.max_model_len" if self._part.serve else "start the servers with a larger --max-model-len"
            )
            raise PromptRefused(
                f"a prompt of {length} tokens leaves no room for a completion: the servers' max_model_len is {limit}; shorten or "
                f"drop the prompt, or {longer}"
            )
        most = request.sampling.max_completion_length
        if limit is None or length + most <= limit:
            return most
        if not self._has_told_of_cut:
            self._has_told_of_cut = True
            logger.warning(
                "a prompt of %d tokens leaves %d for its completion, and engine.max_completion_length is %d: completions like this "
                "one are cut; %s %d or more",
                *(length, limit - length, most),
                "set engine.max_model_len to" if self._part.serve else "start the servers with --max-model-len",
                length + most,
            )
        return limit - length

    def _max_model_len(self) -> int | None:
        limits = [facts.max_model_len for facts in self._fleet.facts if facts.max_model_len is not None]
        return min(limits, default=None)

    def _again(self, request: CompletionRequest, number: int, error: Exception, pause: float) -> None:
        self._retries += 1
        logger.warning("request %016x, try %d: %s; again in %.2f s", request.seed, number, error, pause)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
