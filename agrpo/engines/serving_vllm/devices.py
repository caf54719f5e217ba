"""Which GPUs a server of the run's own takes: never the learner's, which are the first, unless there is no other.

Server and learner on one GPU fail in NCCL, and each would take nearly all of its memory.
"""

from __future__ import annotations

import itertools
import math
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from agrpo.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK_SECONDS = 20.0
SIZES = {
    "--tensor-parallel-size": "-tp",
    "--pipeline-parallel-size": "-pp",
    "--data-parallel-size": "-dp",
    "--prefill-context-parallel-size": "-pcp",
}
"""Arguments by whose product one server takes GPUs, with their short names."""
MEMORY = ("--gpu-memory-utilization", "--kv-cache-memory-bytes")
"""Arguments that bound a server's memory."""
PLACING = "--device-ids"
LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def gpus_here(inherited: Mapping[str, str]) -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` names, else all that the driver knows; none where there is no NVIDIA driver."""
    if VISIBLE in inherited:
        return [name.strip() for name in inherited[VISIBLE].split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    return told.stdout.split() if told.returncode == 0 else []


def learner_gpus(asked: int | None, num_gpus: int, replicas: int, arguments: Sequence[str]) -> int:
    """How many of a machine's GPUs the learner takes. `asked`: its processes; None: all that no server takes, one at least."""
    return asked if asked is not None else max(1, num_gpus - replicas * _each(arguments))


def serve_here(urls: Iterable[str]) -> bool:
    """Whether one of these servers is on this machine, as its URL says: by the loopback, or this machine's own name."""
    own = socket.gethostname().lower()
    here = {*LOOPBACK, own, own.partition(".")[0]}
    return any(urlsplit(url).hostname in here for url in urls)


def gpus_of(
    number: int, replicas: int, arguments: Sequence[str], gpus: Sequence[str], *, learners: int = 1
) -> dict[str, str]:
    """Variables that show server `number` (from 1) of the run its GPUs alone. Raises `ConfigError` where they are too few.

    None of them where this machine's are not known, or the user's arguments place its one server. `learners`: GPUs of the
    learner, which are the first.
    """
    each = _each(arguments)
    if PLACING in _names(arguments):
        if replicas > 1:
            raise ConfigError(f"engine.arguments: {PLACING} puts all {replicas} servers on the same GPUs; leave it out")
        return {}
    if not gpus:
        return {}
    if shares_gpu(arguments, gpus) and replicas * each == learners == 1:
        _check_shared(arguments)
        return {}
    needed = learners + replicas * each
    if len(gpus) < needed:
        theirs = "one GPU" if learners == 1 else f"{learners} GPUs"
        raise ConfigError(
            f"engine.replicas = {replicas}: {theirs} for the learner and {each} for each server are {needed}, and "
            f"{len(gpus)} can be seen ({VISIBLE}, nvidia-smi); start fewer or smaller servers, or serve elsewhere and name "
            "engine.base_urls"
        )
    first = learners + (number - 1) * each
    return {VISIBLE: ",".join(gpus[first : first + each]), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def shares_gpu(arguments: Sequence[str], gpus: Sequence[str]) -> bool:
    """Whether a server is on the learner's GPU, since there is no other."""
    return len(gpus) == 1 and PLACING not in _names(arguments)


def _check_shared(arguments: Sequence[str]) -> None:
    if not {*MEMORY} & {*_names(arguments)}:
        raise ConfigError(
            "engine.serve: the only GPU here is the learner's too, and a server takes nearly all of its memory by itself; "
            'leave some with engine.arguments = ["--gpu-memory-utilization=0.4"], or give the run two GPUs'
        )


def _each(arguments: Sequence[str]) -> int:
    """GPUs of one server."""
    return math.prod(_size(arguments, name, short) for name, short in SIZES.items())


def _names(arguments: Sequence[str]) -> list[str]:
    return [argument.partition("=")[0].replace("_", "-") for argument in arguments]


def _size(arguments: Sequence[str], name: str, short: str) -> int:
    """1 where it is not said. vLLM itself refuses what is no number."""
    value = "1"
    for argument, following in itertools.pairwise([*arguments, ""]):
        said, _, inline = argument.partition("=")
        if said.replace("_", "-") == name or said == short:
            value = inline or following
    return int(value) if value.isdecimal() else 1
