"""What a server says of itself, and what that leaves to be desired, each with the flag that mends it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import LORA_RANKS
from agrpo.engines.serving_vllm.endpoint import Endpoint, Refused, Unreachable
from agrpo.errors import EngineLost
from agrpo.records.pressure import Pressure

logger = logging.getLogger(__name__)

ASK_SECONDS = 30.0
"""For a word about itself; the first one has the server list its packages."""
ODD = (AttributeError, KeyError, TypeError, ValueError)
"""What comes of JSON that has not the shape of vLLM's."""
PROBED = 8
"""Tokens that the check of new weights compares."""
MOST_LOGPROBS = 20
"""What a vLLM gives for each token that was started with no `--max-logprobs`."""
_METRIC = re.compile(r"^vllm:(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_CACHE_TOKENS = re.compile(r'kv_cache_size_tokens="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One server, as it was started. None stands for what it does not say."""

    url: str
    version: str
    models: list[str]
    max_model_len: int | None
    dev_mode: bool
    generates: bool
    """Whether it takes and gives tokens (`--enable-scale-out`)."""
    dtype: str | None = None
    on_cpu: bool = False
    logprobs_mode: str | None = None
    max_logprobs: int | None = None
    returns_candidates: bool | None = None
    lora: dict[str, Any] | None = None
    takes_adapters: bool | None = None
    weight_transfer: str | None = None
    """Backend of its `weight_transfer_config`."""
    told: bool = False
    """Whether it told its settings at all."""

    @property
    def probe_logprobs(self) -> int:
        """How many log-probs to ask it for when its weights are checked."""
        told = self.max_logprobs
        return MOST_LOGPROBS if told is None or told < 0 else min(told, MOST_LOGPROBS)


async def facts_of(endpoint: Endpoint, model: str) -> ServerFacts:
    """Ask a server about itself. Raises `Unreachable`, or `EngineLost` for what is no vLLM server."""
    try:
        version = str((await endpoint.get("/version", ASK_SECONDS))["version"])
        models = (await endpoint.get("/v1/models", ASK_SECONDS))["data"]
        names, longest = [str(entry["id"]) for entry in models], models[0].get("max_model_len")
    except (Refused, KeyError, TypeError, IndexError) as error:
        raise EngineLost(
            f"{endpoint.url} answers, and not as a vLLM server does ({error}); mend engine.base_urls"
        ) from None
    dev_mode = await _opens(endpoint, "/weight_info")
    info = await _settings_of(endpoint) if dev_mode else {}
    config, variables = info.get("vllm_config", {}), info.get("vllm_env", {})
    told = config.get("model_config", {})
    return ServerFacts(
        url=endpoint.url,
        version=version,
        models=names,
        max_model_len=longest,
        dev_mode=dev_mode,
        generates=await _generates(endpoint, names[0]),
        dtype=str(told["dtype"]).removeprefix("torch.") if "dtype" in told else None,
        on_cpu=config.get("device_config", {}).get("device") == "cpu",
        logprobs_mode=told.get("logprobs_mode"),
        max_logprobs=told.get("max_logprobs"),
        returns_candidates=told.get("return_sampling_mask"),
        lora=config.get("lora_config"),
        takes_adapters=variables.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        weight_transfer=(config.get("weight_transfer_config") or {}).get("backend"),
        told=bool(told),
    )


async def names_at(endpoint: Endpoint, seconds: float) -> list[str]:
    """What a server may be asked for by name: its model, and its adapters."""
    return [str(entry["id"]) for entry in (await endpoint.get("/v1/models", seconds))["data"]]


async def is_paused(endpoint: Endpoint) -> bool:
    """Whether a server waits for somebody to resume it; one that cannot say does not."""
    try:
        return bool((await endpoint.get("/is_paused", ASK_SECONDS))["is_paused"])
    except Refused:
        return False


def findings(facts: ServerFacts, needs: Needs, model: str, *, own: bool = False, by_nccl: bool = False) -> list[str]:
    """Everything that would keep the run from working, a sentence each, with the flag to add.

    `own`: the run starts the server itself, so that settings take the place of flags. `by_nccl`: the learner was told to
    push its weights, and to do nothing else.
    """
    problems = [*_problems(facts, needs, model, own), *(_transfer_problems(facts) if by_nccl else [])]
    return [f"{facts.url}: {problem}" for problem in problems]


def pressure_of(text: str) -> Pressure | None:
    """What one server's `/metrics` say. None: nothing that is needed."""
    numbers = _numbers(text)
    if "kv_cache_usage_perc" not in numbers:
        return None
    tokens = [int(found) for found in _CACHE_TOKENS.findall(text)]
    return Pressure(
        kv_usage=max(numbers["kv_cache_usage_perc"]),
        running=_sum(numbers, "num_requests_running"),
        queued=_sum(numbers, "num_requests_waiting"),
        preemptions=_sum(numbers, "num_preemptions_total"),
        cache_tokens=sum(tokens) or None,
    )


def _problems(facts: ServerFacts, needs: Needs, model: str, own: bool) -> Iterator[str]:
    sampling = needs.sampling
    if not facts.dev_mode:
        yield "takes no new weights; start it with VLLM_SERVER_DEV_MODE=1"
    if model not in facts.models:
        yield (
            f'serves {", ".join(facts.models)} and not "{model}"; start it with --served-model-name {model}, or set '
            "engine.served_model"
        )
    if facts.logprobs_mode not in (None, "processed_logprobs"):
        yield (
            f"gives log-probs as --logprobs-mode {facts.logprobs_mode}, which are not those of the distribution it samples; "
            "start it with --logprobs-mode processed_logprobs"
        )
    wanted = max(sampling.num_sampler_logprobs, PROBED) + 1
    if facts.max_logprobs is not None and 0 <= facts.max_logprobs < wanted:
        yield (
            f"gives {facts.max_logprobs} log-probs per token; engine.num_sampler_logprobs = {sampling.num_sampler_logprobs} and "
            f"the check of new weights ({PROBED}) need {wanted}: start it with --max-logprobs {wanted}"
        )
    yield from _candidate_problems(facts, needs)
    if facts.max_model_len is not None and facts.max_model_len <= sampling.max_completion_length:
        longer = (
            "raise engine.max_model_len as far as the model allows" if own else "start it with a larger --max-model-len"
        )
        yield (
            f"holds {facts.max_model_len} tokens of prompt and completion together, and engine.max_completion_length is "
            f"{sampling.max_completion_length}; {longer}, or lower the second"
        )
    yield from _adapter_problems(facts, needs)


def _transfer_problems(facts: ServerFacts) -> Iterator[str]:
    why = 'engine.weights = "nccl"'
    if facts.told and facts.weight_transfer != "nccl":
        has = f"the backend {facts.weight_transfer}" if facts.weight_transfer else "no weight transfer"
        yield f"""has {has}, and {why} needs one; start it with --weight-transfer-config '{{"backend": "nccl"}}'"""
    if not facts.generates:
        yield f"{why} needs the label of each token; start it with --enable-scale-out"


def _candidate_problems(facts: ServerFacts, needs: Needs) -> Iterator[str]:
    if not needs.sampling.truncated:
        return
    why = "engine.top_k, top_p and min_p need the candidates of each token"
    if not facts.generates:
        yield f"{why}; start it with --enable-scale-out"
    if facts.returns_candidates is False:
        cpu = "; vLLM's CPU build cannot: leave top_k, top_p and min_p out" if facts.on_cpu else ""
        yield (
            f"{why}; start it with --return-sampling-mask (and VLLM_USE_V2_MODEL_RUNNER=1 where it refuses that){cpu}"
        )


def _adapter_problems(facts: ServerFacts, needs: Needs) -> Iterator[str]:
    rank = needs.adapter_rank
    if rank is None or not facts.told:
        return
    if facts.lora is None:
        yield 'takes no adapters; start it with --enable-lora, or set adapter.publish = "merged"'
        return
    if not facts.takes_adapters:
        yield "takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    if facts.lora.get("max_lora_rank", rank) < rank:
        least = min((allowed for allowed in LORA_RANKS if allowed >= rank), default=rank)
        yield f"takes adapters up to rank {facts.lora['max_lora_rank']}, adapter.rank is {rank}; start it with --max-lora-rank {least}"
    if facts.lora.get("max_loras", 0) < needs.max_staleness + 2:
        yield (
            f"holds {facts.lora.get('max_loras')} adapters at once, and async.max_staleness = {needs.max_staleness} needs "
            f"{needs.max_staleness + 2}; start it with --max-loras {needs.max_staleness + 2}"
        )


async def _opens(endpoint: Endpoint, path: str) -> bool:
    try:
        await endpoint.get(path, ASK_SECONDS)
    except Refused:
        return False
    return True


async def _settings_of(endpoint: Endpoint) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", await endpoint.get("/server_info?config_format=json", ASK_SECONDS))
    except (Unreachable, Refused) as error:
        logger.warning(
            "the server's settings cannot be checked, only its answers: %s; where its environment has neither pip nor uv, "
            "install pip there",
            error,
        )
        return {}


async def _generates(endpoint: Endpoint, model: str) -> bool:
    """A request that is refused for what it says, and not for where it goes, finds the door open."""
    try:
        await endpoint.post(
            "/inference/v1/generate", {"model": model, "token_ids": [], "sampling_params": {}}, ASK_SECONDS
        )
    except Refused as refused:
        return refused.status not in (403, 404, 405)
    return True


def _numbers(text: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, _, value in _METRIC.findall(text):
        found.setdefault(name, []).append(float(value))
    return found


def _sum(numbers: dict[str, list[float]], name: str) -> int:
    """Over the engines of one server."""
    return int(sum(numbers.get(name, [])))
