"""The processes that train one policy together: who they are, and what they say to each other.

A rank finds the others as one that `torchrun` started does: by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
Tensors go over NCCL between GPUs and over gloo between CPUs, objects always over gloo. Every wait for what the others are
to do now has a deadline; the wait for what rank 0 announces next has none, since it ends with rank 0.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agrpo.errors import DeadlineExceeded, LearnerRankLost

if TYPE_CHECKING:
    from torch.distributed import (
        ProcessGroup,
        TCPStore,  # pyright: ignore[reportPrivateImportUsage]
    )

FOREVER = timedelta(days=365)
DEADLINE = "deadline_seconds"
"""Key of the store under which rank 0 says how long each may wait for what the others are to do as well."""
JOIN_SECONDS = 600.0
"""How long a rank may look for rank 0, before it knows any deadline of the run's."""
TIMED_OUT = re.compile(r"time(d |-)?out", re.IGNORECASE)
CUT_OFF = re.compile(r"connection (was likely )?(closed|reset)|broken pipe", re.IGNORECASE)
"""In the words of gloo, NCCL and the store, whose errors have no class that says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rank a process is, as its environment says."""

    rank: int
    size: int
    local_rank: int
    """Among the ranks of its machine: the GPU that it takes."""
    address: str
    port: int

    @classmethod
    def of_environment(cls) -> Place:
        """As `torchrun` sets it."""
        return cls(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            address=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]),
        )

    def environment(self) -> dict[str, str]:
        """The variables that say it."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


class Group:
    """The ranks, seen from one of them. `Group()` is a process alone."""

    rank: int = 0
    size: int = 1
    mesh: DeviceMesh | None = None
    """Over all ranks. None: there is one, and nothing is split."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: what this rank computes on; None: its first GPU, or the CPU where there is none."""
        self.device = device or own_device(0)

    def announce(self, word: object) -> None:
        """As rank 0, tell all others; they `hear` it. Nothing happens where there is none."""

    def hear(self) -> Any:
        """As another rank, what rank 0 announces next, however long that takes."""
        raise AssertionError("a process alone hears nobody")

    def everyone(self, value: Any) -> list[Any]:
        """What every rank says, by rank. All must call it."""
        return [value]

    def gathered(self, value: Any) -> list[Any]:
        """What every rank says, by rank, at rank 0; nothing elsewhere. All must call it."""
        return [value]

    def dealt(self, shares: Sequence[Any]) -> Any:
        """This rank's of the shares that rank 0 gives, by rank; what others give is not looked at. All must call it."""
        return shares[0]

    def absence(self, error: RuntimeError) -> DeadlineExceeded | LearnerRankLost | None:
        """What to raise where `error` says that another rank is gone, or did not come. None: it says something else."""
        return None

    def leave(self) -> None:
        """No rank of it is heard from here any more."""


class Ranks(Group):
    """Two or more. Joining blocks until all have joined."""

    def __init__(self, place: Place, store: TCPStore, *, device: torch.device, deadline_seconds: float) -> None:
        """`deadline_seconds`: longest wait for what the other ranks are to do as well.

        Raises `DeadlineExceeded` or `LearnerRankLost` where another does not join.
        """
        super().__init__(device)
        self.rank, self.size = place.rank, place.size
        self._seconds = deadline_seconds
        try:
            self._meet(store, timedelta(seconds=deadline_seconds))
        except RuntimeError as error:
            absence = self.absence(error)
            if absence is None:
                raise
            raise absence from error

    def _meet(self, store: TCPStore, within: timedelta) -> None:
        backend, bound = ("nccl", self.device) if self.device.type == "cuda" else ("gloo", None)
        if bound is not None:
            torch.cuda.set_device(bound)
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=self.size, timeout=within, device_id=bound
        )
        try:
            self.mesh = init_device_mesh(self.device.type, (self.size,))
            self._objects = _gloo(within)
            # Rank 0 waits for those that are to hear it, and they for rank 0: it alone knows when it has something to say.
            self._words = _gloo(within if self.rank == 0 else FOREVER)
        except BaseException:
            self.leave()
            raise

    def announce(self, word: object) -> None:
        dist.broadcast_object_list([word], src=0, group=self._words)

    def hear(self) -> Any:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._words)
        return heard[0]

    def everyone(self, value: Any) -> list[Any]:
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, value, group=self._objects)
        return said

    def gathered(self, value: Any) -> list[Any]:
        said: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, said, dst=0, group=self._objects)
        return said or []

    def dealt(self, shares: Sequence[Any]) -> Any:
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, list(shares) if self.rank == 0 else None, src=0, group=self._objects)
        return mine[0]

    def absence(self, error: RuntimeError) -> DeadlineExceeded | LearnerRankLost | None:
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            return None
        who, said = f"rank {self.rank} of {self.size} of the learner", str(error).partition("\n")[0]
        if TIMED_OUT.search(said):
            return DeadlineExceeded(
                f"{who} waited {self._seconds:.0f} s for another rank, which did not come ({said}); see in the log what that "
                "one did, and raise supervision.stall_seconds where its share of a step takes so long"
            )
        if CUT_OFF.search(said):
            return LearnerRankLost(
                f"{who} lost its connection to another rank ({said}); see in the log what became of that"
            )
        return None

    def leave(self) -> None:
        self.mesh = None
        dist.destroy_process_group()


def num_gpus() -> int:
    """That this process can see."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def own_device(local_rank: int, *, on_cpu: bool = False) -> torch.device:
    """The GPU of a rank; the CPU where there is none, or where that is asked for."""
    return torch.device("cuda", local_rank) if torch.cuda.is_available() and not on_cpu else torch.device("cpu")


def host_store(address: str, size: int, deadline_seconds: float) -> TCPStore:
    """Where so many ranks find each other, at a free port of this address and of no other of the machine.

    It lasts as long as the object; whoever waits in it when it goes fails at once.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    # Left to itself the store listens to every network that the machine is in.
    listener = socket.create_server((address, 0))
    return TCPStore(
        address,
        listener.getsockname()[1],
        world_size=size,
        is_master=True,
        timeout=timedelta(seconds=deadline_seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def store_of(place: Place, deadline_seconds: float) -> TCPStore:
    """As any rank, the store that the learner or `torchrun` hosts. Raises `DeadlineExceeded` where it cannot be reached."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    try:
        return TCPStore(
            place.address,
            place.port,
            world_size=place.size,
            is_master=False,
            timeout=timedelta(seconds=deadline_seconds),
            wait_for_workers=False,
        )
    except dist.DistError as error:
        raise DeadlineExceeded(
            f"rank {place.rank} of {place.size} waited {deadline_seconds:.0f} s for rank 0 at {place.address}:{place.port} "
            f"({str(error).rstrip('.')}); see that rank 0 runs there, and that nothing keeps this machine from reaching it"
        ) from error


def join() -> Ranks:
    """As a further rank, join those that this process's environment names, as `torchrun` sets it."""
    place = Place.of_environment()
    store = store_of(place, JOIN_SECONDS)
    store.set(arrival(place.rank), "")
    seconds = float(store.get(DEADLINE))
    return Ranks(place, store, device=own_device(place.local_rank), deadline_seconds=seconds)


def arrival(rank: int) -> str:
    """Key of the store by which a rank says that it is about to join."""
    return f"arrived/{rank}"


def _gloo(within: timedelta) -> ProcessGroup:
    group: Any = dist.new_group(backend="gloo", timeout=within)
    return group
