"""How a server of the run's own is started: its command line and its environment variables.

Each flag that agrpo needs has its row in docs/vllm.md. What `engine.arguments` adds comes last, and what would undo one of
those flags is refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agrpo.config import ModelSection
from agrpo.engines.serving_vllm.devices import gpus_here, gpus_of, learner_gpus, shares_gpu
from agrpo.engines.serving_vllm.environment import Installation
from agrpo.errors import ConfigError

if TYPE_CHECKING:
    from agrpo.engines import Needs
    from agrpo.engines.vllm import Vllm

HOST = "127.0.0.1"
"""Its development endpoints let anyone load weights, so that it listens to this machine alone."""
API_SERVER = "vllm.entrypoints.launchers.api_server.entry"
"""The module that serves, for a build whose `vllm serve` does not find itself."""
CPU_KV_CACHE_BYTES = 2**30
"""All of it is memory of the machine; 1 GiB holds 23 000 tokens of a model with 135 million weights in float32."""
LEAST_LOGPROBS = 20
"""What a server allows by itself."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The only ones that `--max-lora-rank` takes."""

REFUSED: Mapping[str, str] = {
    "--model": "set model.path",
    "--tokenizer": "the tokenizer is model.path's",
    "--revision": "set model.revision",
    "--trust-remote-code": "set model.trust_remote_code",
    "--dtype": "set model.dtype",
    "--served-model-name": "set engine.served_model",
    "--max-model-len": "set engine.max_model_len",
    "--host": "the run's own servers listen to this machine alone",
    "--port": "a free port is chosen",
    "--uds": "the generator speaks HTTP with it",
    "--ssl-keyfile": "the generator speaks plain HTTP with it",
    "--ssl-certfile": "the generator speaks plain HTTP with it",
    "--root-path": "the generator asks at the root",
    "--api-key": "set engine.api_key_variable",
    "--config": "write its lines here: a file could undo what agrpo needs",
    "--headless": "the generator speaks HTTP with it",
    "--grpc": "the generator speaks HTTP with it",
    "--logprobs-mode": "agrpo needs processed_logprobs",
    "--max-logprobs": "set engine.num_sampler_logprobs",
    "--generation-config": "agrpo says every sampling setting itself",
    "--override-generation-config": "agrpo says every sampling setting itself",
    "--enable-scale-out": "agrpo asks in tokens, which needs it on",
    "--disable-log-stats": "agrpo reads the server's load from /metrics",
    "--return-sampling-mask": "it is set where sampling is truncated",
    "--weight-transfer-config": "set engine.weights",
    "--enable-lora": "it is set where an adapter is trained",
    "--max-lora-rank": "it is the adapter's rank, rounded up",
    "--max-loras": "it follows from async.max_staleness",
    "--skip-tokenizer-init": "the tokenizer is compared with the learner's",
}
"""Arguments that contradict what agrpo needs or decides, and what to do instead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One server, about to be started."""

    line: list[str]
    """The program and its arguments."""
    env: dict[str, str]
    """All of its environment variables."""
    url: str
    """Where it will answer."""


def server_command(
    engine: Vllm,
    model: ModelSection,
    needs: Needs,
    installation: Installation,
    *,
    port: int,
    number: int = 1,
    learner_processes: int | None = 1,
    inherited: Mapping[str, str] | None = None,
    gpus: Sequence[str] | None = None,
) -> Command:
    """Server `number` of this run, from 1, on a port that is free.

    `learner_processes`: as `[workers]` has it: each takes a GPU.
    `inherited`: variables it begins with; None: this process's. `gpus`: those of this machine; None: as it says itself.
    Raises `ConfigError` for arguments that contradict what the run needs, and for what this build or machine cannot do.
    """
    inherited = os.environ if inherited is None else inherited
    problems = [*argument_problems(engine.arguments, installation), *_build_problems(engine, needs, installation)]
    if problems:
        raise ConfigError(problems)
    env = _variables(engine, needs, installation, inherited)
    line = [*_program(model.path, installation), *_flags(engine, model, needs, installation)]
    if not installation.on_cpu:
        known = gpus_here(inherited) if gpus is None else gpus
        learners = learner_gpus(learner_processes, len(known), engine.replicas, engine.arguments)
        env |= gpus_of(number, engine.replicas, engine.arguments, known, learners=learners)
        line += _transfer(engine, known)
    line += ["--host", HOST, "--port", str(port), "--disable-uvicorn-access-log"]
    return Command(
        line=[*line, *_cpu_memory(engine, installation, inherited), *engine.arguments],
        env=env,
        url=f"http://{HOST}:{port}",
    )


def argument_problems(arguments: Sequence[str], installation: Installation | None = None) -> list[str]:
    """A sentence for each of `engine.arguments` that contradicts what agrpo needs; all that a build refuses, if it is known."""
    names = [_name(argument) for argument in arguments if argument.startswith("-")]
    found = [f"engine.arguments: {name} is refused: {REFUSED[flag]}" for name in names if (flag := _flag(name))]
    if arguments and not arguments[0].startswith("-"):
        found.append(f"engine.arguments: begins with {arguments[0]!r}; expected flags such as --enforce-eager")
    if installation is not None and not installation.has_command and "--api-server-count" in names:
        found.append(
            f"engine.arguments: --api-server-count needs `vllm serve`, which the package {installation.package} has not; "
            "leave it out"
        )
    return found


def lora_rank(rank: int) -> int:
    """The least `--max-lora-rank` that bears an adapter of this rank. Raises `ConfigError` where none does."""
    for allowed in LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise ConfigError(
        f'adapter.rank = {rank}: vLLM serves adapters up to rank {LORA_RANKS[-1]}; lower it, or set adapter.publish = "merged"'
    )


def _program(model: str, installation: Installation) -> list[str]:
    python = str(installation.python)
    if installation.has_command:
        return [python, "-m", "vllm.entrypoints.cli.main", "serve", model]
    return [python, "-m", API_SERVER, "--model", model]


def _flags(engine: Vllm, model: ModelSection, needs: Needs, installation: Installation) -> list[str]:
    flags = ["--served-model-name", engine.served_model or model.path, "--dtype", model.served_dtype]
    flags += ["--generation-config", "vllm", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    flags += ["--max-logprobs", str(max(LEAST_LOGPROBS, needs.sampling.num_sampler_logprobs + 1))]
    flags += ["--revision", model.revision] if model.revision else []
    flags += ["--trust-remote-code"] if model.trust_remote_code else []
    flags += ["--max-model-len", str(engine.max_model_len)] if engine.max_model_len else []
    if needs.adapter_rank is not None:
        flags += ["--enable-lora", "--max-lora-rank", str(lora_rank(needs.adapter_rank))]
        flags += ["--max-loras", str(needs.max_staleness + 2)]
    flags += ["--return-sampling-mask"] if needs.sampling.truncated and not installation.on_cpu else []
    return flags


def _transfer(engine: Vllm, gpus: Sequence[str]) -> list[str]:
    """NCCL joins two GPUs: with the learner on the server's own there is no such way, nor where another one is asked for."""
    shared = shares_gpu(engine.arguments, gpus)
    if shared and engine.weights == "nccl":
        raise ConfigError(
            "engine.weights = \"nccl\": the only GPU here is the learner's and the server's, and NCCL joins two; set "
            '"filesystem", or "auto"'
        )
    if shared or engine.weights == "filesystem":
        return []
    return ["--weight-transfer-config", json.dumps({"backend": "nccl"})]


def _cpu_memory(engine: Vllm, installation: Installation, inherited: Mapping[str, str]) -> list[str]:
    """Of a CPU build's KV cache, unless the user has chosen: it would take nearly all of the machine's."""
    given = {_name(argument) for argument in engine.arguments}
    if not installation.on_cpu or "--kv-cache-memory-bytes" in given or "VLLM_CPU_KVCACHE_SPACE" in inherited:
        return []
    return ["--kv-cache-memory-bytes", str(CPU_KV_CACHE_BYTES)]


def _variables(engine: Vllm, needs: Needs, installation: Installation, inherited: Mapping[str, str]) -> dict[str, str]:
    """This process's, but for those by which our interpreter finds its packages and its share of the cores."""
    env = {name: value for name, value in inherited.items() if name not in _OURS}
    env |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    if needs.adapter_rank is not None:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if needs.sampling.truncated and not installation.on_cpu:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if engine.api_key_variable is not None:
        key = inherited.get(engine.api_key_variable)
        if not key:
            raise ConfigError(f"engine.api_key_variable: the environment variable {engine.api_key_variable} is not set")
        env["VLLM_API_KEY"] = key
    return env


_OURS = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS"}


def _build_problems(engine: Vllm, needs: Needs, installation: Installation) -> list[str]:
    if not installation.on_cpu:
        return []
    build, problems = f"the CPU build of vLLM ({installation.package} {installation.version})", list[str]()
    if needs.sampling.truncated:
        problems.append(
            f"engine.top_k, top_p or min_p: {build} cannot say which tokens were left out; set top_k = 0, top_p = 1 and "
            "min_p = 0, serve on a GPU, or use the engine transformers"
        )
    if engine.weights == "nccl":
        problems.append(f'engine.weights = "nccl": {build} has no NCCL; set "filesystem", or "auto"')
    return problems


def _name(argument: str) -> str:
    """`--max-logprobs` for `--max_logprobs=30`, as vLLM reads it."""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-") if argument.startswith("--") else argument


def _flag(name: str) -> str | None:
    """The refused flag that is meant: also one that `--no-` switches off, or that an abbreviation begins."""
    plain = f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name
    return next((flag for flag in REFUSED if flag.startswith(plain)), None) if len(plain) > len("--") else None
