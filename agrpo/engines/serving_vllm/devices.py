"""Which GPUs a server of the run's own takes: never the learner's, which are the first, unless there is no other.

Server and learner on one GPU fail in NCCL, and each would take nearly all of its memory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from agrpo.errors import ConfigError

logger = logging.getLogger(__name__)

DRIVER = "nvidia-smi"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK_SECONDS = 20.0
LEAVE_SECONDS = 1.0
"""How long it may take to end once it was killed."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What `nvidia-smi` answered."""

    lines: tuple[str, ...] = ()
    why_not: str | None = None
    """Why there is no answer; None: `lines` are one."""


def ask_driver(*arguments: str) -> Told | None:
    """What `nvidia-smi` answers, within `ASK_SECONDS`. None: this machine has no such program."""
    program = shutil.which(DRIVER)
    if program is None:
        return None
    pipe = subprocess.PIPE
    try:
        asked = subprocess.Popen([program, *arguments], stdout=pipe, stderr=pipe, text=True, errors="replace")
    except OSError as error:
        return Told(why_not=f"{DRIVER} cannot be run: {error.strerror}")
    try:
        out, wrong = asked.communicate(timeout=ASK_SECONDS)
    except subprocess.TimeoutExpired:
        _give_up(asked)
        return Told(why_not=f"{DRIVER} did not answer for {ASK_SECONDS:g} s")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    if asked.returncode == 0 and lines:
        return Told(lines=tuple(lines))
    said = next((line.strip() for line in (*wrong.splitlines(), *lines) if line.strip()), "nothing")
    return Told(why_not=f"{DRIVER} ended with {asked.returncode} and said: {said}")


def _give_up(asked: subprocess.Popen[str]) -> None:
    asked.kill()
    for stream in (asked.stdout, asked.stderr):
        if stream is not None:
            stream.close()
    # What hangs within the driver does not even die.
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked.wait(LEAVE_SECONDS)


def named(visible: str) -> list[str]:
    """GPUs that a value of `CUDA_VISIBLE_DEVICES` names: as CUDA reads it, what follows -1 is hidden."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return list(itertools.takewhile(lambda name: not name.startswith("-"), names))


def gpus_here(inherited: Mapping[str, str]) -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` names, else all that the driver knows.

    None where there is no NVIDIA driver, nor, with a warning, where it does not say.
    """
    if VISIBLE in inherited:
        return named(inherited[VISIBLE])
    told = ask_driver("--query-gpu=index", "--format=csv,noheader")
    if told is None:
        return []
    strange = [line for line in told.lines if not line.isdecimal()]
    why_not = told.why_not or (f"{DRIVER} said: {strange[0]}" if strange else None)
    if why_not is not None:
        logger.warning(
            "which GPUs this machine has is not known (%s), so servers are given none of their own; name them in %s",
            why_not,
            VISIBLE,
        )
        return []
    return list(told.lines)


def learner_gpus(asked: int | None, num_gpus: int, replicas: int, arguments: Sequence[str]) -> int:
    """How many of a machine's GPUs the learner takes. `asked`: its processes; None: all that no server takes, one at least."""
    return asked if asked is not None else max(1, num_gpus - replicas * gpus_each(arguments))


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
    each = gpus_each(arguments)
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
            f"{len(gpus)} can be seen ({VISIBLE}, {DRIVER}); start fewer or smaller servers, or serve elsewhere and name "
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


def gpus_each(arguments: Sequence[str]) -> int:
    """GPUs of one server."""
    return math.prod(_size(arguments, name, short) for name, short in SIZES.items())


def _names(arguments: Sequence[str]) -> list[str]:
    return [argument.partition("=")[0].replace("_", "-") for argument in arguments]


def _size(arguments: Sequence[str], name: str, short: str) -> int:
    """1 where it is not said. vLLM itself refuses what is no number."""
    value = value_of(arguments, name, short) or ""
    return int(value) if value.isdecimal() else 1


def value_of(arguments: Sequence[str], name: str, short: str | None = None) -> str | None:
    """What the last of the arguments of that name says. None: there is none."""
    value = None
    for argument, following in itertools.pairwise([*arguments, ""]):
        said, _, inline = argument.partition("=")
        if said.replace("_", "-") == name or said == short:
            value = inline or following
    return value
