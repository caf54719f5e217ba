"""The GPUs that torch will see in the learner's process, told without importing it: by its build, and by the driver.

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it: what follows a name that is nobody's is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from agrpo.engines.serving_vllm.devices import DRIVER, VISIBLE, ask_driver, named
from agrpo.runs.memory.machine import Memory

QUERY = "index,uuid,memory.total,memory.free,mig.mode.current"
SIGNS = ("nvidia0", "nvidiactl", "nvidia-caps", "nvhost-gpu", "dxg")
"""Devices by one of which a machine has a GPU of NVIDIA's, whether or not its driver's program is there."""
SIGN_OF_AMD = "kfd"
OF_ITS_NAME = 0.95
"""How much of the gigabytes in its name a share of a GPU has (`1g.10gb`: 9.6 GiB)."""
_VARIABLE = re.compile(r"^(cuda|hip)\b[^=]*=\s*(.+?)\s*$", re.MULTILINE)
_GPU = re.compile(r"^GPU (\d+):")
_SHARE = re.compile(r"^MIG \S*?(\d+)gb\S*\s+Device\s+\d+:\s*\(UUID:\s*(MIG-[^)\s]+)\)")


class Build(StrEnum):
    """What a build of torch computes on."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


HIDING = {
    Build.CUDA: (VISIBLE,),
    Build.ROCM: (VISIBLE, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What is known of them."""

    memory: tuple[Memory, ...] = ()
    """In the order in which they are seen; empty where none is, or nothing is known."""
    doubt: str | None = None
    """Why there may be others; None: it is sure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A GPU as the driver tells it."""

    index: str
    uuid: str
    memory: Memory | None
    """None: it does not say (memory that it shares with the machine)."""
    is_shared_out: bool
    """MIG: only shares of it can be computed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A share of a GPU (MIG)."""

    index: str
    """Of the GPU."""
    uuid: str
    memory: Memory


def torch_build() -> Build:
    """Of the torch that is installed here, without importing it."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    if file is not None and file.is_file():
        return build_in(file.read_text("utf-8"))
    try:
        local = version("torch").partition("+")[2]
    except PackageNotFoundError:
        local = ""  # whoever imports it says that it is missing
    return Build.CPU if local.startswith("cpu") else Build.ROCM if local.startswith("rocm") else Build.CUDA


def build_in(text: str) -> Build:
    """What torch's own `version.py` says."""
    said = {name: value for name, value in _VARIABLE.findall(text) if value != "None"}
    return Build.ROCM if "hip" in said else Build.CUDA if "cuda" in said else Build.CPU


def find_gpus(inherited: Mapping[str, str], build: Build, devices: Path = Path("/dev")) -> Gpus:
    """Of this machine, for a process with these variables. `devices`: where the machine's own lie."""
    if build is Build.CPU or any(name in inherited and not named(inherited[name]) for name in HIDING[build]):
        return Gpus()
    if build is Build.ROCM:
        here = (devices / SIGN_OF_AMD).exists()
        return Gpus(doubt="torch is a build for AMD's, whose memory is not read") if here else Gpus()
    told = ask_driver(f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    if told is None:
        sign = next((devices / name for name in SIGNS if (devices / name).exists()), None)
        return Gpus(doubt=f"there is {sign}, and no {DRIVER}") if sign else Gpus()
    if told.why_not is not None:
        return Gpus(doubt=told.why_not)
    rows = [_row(line) for line in told.lines]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return Gpus(doubt=f"{DRIVER} said: {told.lines[rows.index(None)]}")
    return _seen(inherited, known)


def _row(line: str) -> _Row | None:
    """None: it is no line of a GPU."""
    words = [word.strip() for word in line.split(",")]
    if len(words) < 4 or not words[0].isdecimal():
        return None
    index, uuid, total, free, *mode = words
    sizes = total.isdecimal() and free.isdecimal()
    memory = Memory(total=int(total) * 2**20, free=int(free) * 2**20) if sizes else None
    return _Row(index=index, uuid=uuid, memory=memory, is_shared_out=mode == ["Enabled"])


def _seen(inherited: Mapping[str, str], rows: Sequence[_Row]) -> Gpus:
    names = named(inherited[VISIBLE]) if VISIBLE in inherited else [row.index for row in rows]
    shares = _shares() if any(row.is_shared_out for row in rows) or any(_is_share(name) for name in names) else []
    seen: list[Memory] = []
    for name in names:
        row = next((row for row in rows if _means(name, row)), None)
        share = next((share for share in shares if _is_meant(share, name, row)), None)
        if row is None and share is None:
            return Gpus(doubt=f'{VISIBLE} names "{name}", which {DRIVER} does not know')
        if share is not None:
            # No process sees another beside it.
            return Gpus(
                memory=(share.memory,), doubt="the learner has a share of one (MIG), whose size is that of its name"
            )
        if row is None or row.memory is None or row.is_shared_out:
            return Gpus(doubt=f"{DRIVER} does not say how much memory GPU {name} has")
        seen.append(row.memory)
    if _may_be_in_another_order(inherited, names, rows):
        doubt = "they differ, and CUDA may count them in another order than nvidia-smi; CUDA_DEVICE_ORDER=PCI_BUS_ID settles it"
        return Gpus(memory=tuple(seen), doubt=doubt)
    return Gpus(memory=tuple(seen))


def _means(name: str, row: _Row) -> bool:
    """By its number, or by the beginning of its id."""
    return name == row.index or (len(name) > len("GPU-") and row.uuid.startswith(name))


def _is_share(name: str) -> bool:
    return name.startswith("MIG-")


def _is_meant(share: _Share, name: str, row: _Row | None) -> bool:
    """Where a whole GPU is named, the first of its shares is seen."""
    return share.uuid == name if _is_share(name) else row is not None and share.index == row.index


def _may_be_in_another_order(inherited: Mapping[str, str], names: Sequence[str], rows: Sequence[_Row]) -> bool:
    """CUDA counts the fastest first unless it is told otherwise."""
    differ = len({row.memory.total for row in rows if row.memory is not None}) > 1
    return differ and inherited.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and any(name.isdecimal() for name in names)


def _shares() -> list[_Share]:
    told = ask_driver("-L")
    found, index = list[_Share](), ""
    for line in told.lines if told is not None else ():
        gpu, share = _GPU.match(line), _SHARE.match(line)
        index = gpu[1] if gpu else index
        if share:
            size = round(OF_ITS_NAME * int(share[1]) * 2**30)
            found.append(_Share(index=index, uuid=share[2], memory=Memory(total=size, free=size)))
    return found
