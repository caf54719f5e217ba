"""The further ranks of a learner: started by rank 0, watched by it, and never without it.

They are children of the stage and in its process group, so whoever ends the stage ends them; each holds the read end of a
pipe to it, as the stage does to its supervisor, and ends when that closes. A rank that dies, or says nothing for too long,
is named: the others are killed, so that rank 0, which waits for them in the middle of a step, hears of it at once.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from agrpo.config import RunConfig
from agrpo.engines.serving_vllm.devices import learner_gpus, serve_here
from agrpo.engines.vllm import Vllm
from agrpo.errors import ConfigError, DeadlineExceeded, LearnerRankLost
from agrpo.policy.ranks.group import DEADLINE, Group, Place, Ranks, arrival, host_store, num_gpus, own_device, store_of
from agrpo.stages import report
from agrpo.stages.context import new_incarnation
from agrpo.stages.process import python_path
from agrpo.stages.stage_process import how_ended
from agrpo.waiting import wait_for

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

logger = logging.getLogger(__name__)

STAGE = "rank"
"""The page of this room that a further rank runs."""
ADDRESS = "127.0.0.1"
BEAT_SECONDS = 1.0
"""Between two words of a rank."""
SILENT_SECONDS = 60.0
"""Longest silence of a rank; half of what is allowed to the learner, where that is less and the rank has spoken."""
LOOK_SECONDS = 0.1
CAUSE_SECONDS = 3.0
"""How long after a failed deed a rank may be found to be its cause."""
LEAVE_SECONDS = 10.0
"""How long a rank may take to end once it was told to."""
DEADLINE_SHARE = 0.75
"""Of the time after which the learner is taken to stand still: the most that it waits for a rank, so that it can say so."""
BY_ANOTHER = frozenset({DeadlineExceeded.__name__, LearnerRankLost.__name__})
"""What a rank raises that has lost another (`policy.ranks.group.Group.absence`)."""
FOREIGN = "TORCHELASTIC_"
"""How variables begin that tell of ranks of somebody else's: a `torchrun` that started the whole run, say."""


@dataclass(kw_only=True)
class _Rank:
    """One of them as its starter sees it."""

    rank: int
    process: subprocess.Popen[bytes]
    beats: IO[bytes]
    last_words: IO[bytes]
    silent_seconds: float = 0.0
    has_spoken: bool = False


def ranks_asked(config: RunConfig) -> int:
    """Processes of the learner that new steps are planned for. Raises `ConfigError` where GPUs are too few for them."""
    asked, gpus, engine = config.workers.learner_processes, num_gpus(), config.engine
    if asked is None:
        if isinstance(engine, Vllm) and engine.serve:
            return learner_gpus(None, gpus, engine.replicas, engine.arguments)
        if isinstance(engine, Vllm) and gpus > 1 and serve_here(engine.urls()):
            logger.info(
                "one process of the learner on the first of %d GPUs: the servers at engine.base_urls are on this machine, and "
                "which GPUs are theirs is not known; workers.learner_processes says how many the learner takes",
                gpus,
            )
            return 1
        return max(1, gpus)
    if gpus and asked > gpus:
        raise ConfigError(
            f"workers.learner_processes = {asked}: each takes a GPU of its own, and {gpus} can be seen; ask for fewer"
        )
    return asked


def recruiter_of(config: RunConfig, stop: threading.Event, *, on_cpu: bool = False) -> Recruiter:
    """One that takes a rank for lost before the learner itself is taken to stand still. `on_cpu`: whatever else is here."""
    stall = config.supervision.stall_seconds or config.stop.stall_seconds / 2
    return Recruiter(
        silent_seconds=min(SILENT_SECONDS, stall / 2),
        deadline_seconds=DEADLINE_SHARE * stall,
        stop=stop,
        on_cpu=on_cpu,
    )


class Recruiter:
    """Brings a trainee as many ranks as it asks for, one group after the other. A context manager: none outlives it."""

    def __init__(
        self, *, silent_seconds: float, deadline_seconds: float, stop: threading.Event, on_cpu: bool = False
    ) -> None:
        """As `LearnerRanks` takes them."""
        self.silent_seconds = silent_seconds
        self.deadline_seconds = deadline_seconds
        self._stop = stop
        self._device = own_device(0, on_cpu=on_cpu)
        self._ranks: LearnerRanks | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.__exit__(kind, error, tb)

    def can_be(self, size: int) -> bool:
        """A rank on GPUs has one of its own; on a CPU there may be any number."""
        return self._device.type == "cpu" or size <= num_gpus()

    def form(self, size: int) -> Group:
        """A group of so many, whose rank 0 is this process. One that is there already stays."""
        if self._ranks is not None and self._ranks.size == size and self._ranks.group is not None:
            return self._ranks.group
        self.__exit__(None, None, None)
        if size == 1:
            return Group(self._device)
        ranks = LearnerRanks(
            size,
            silent_seconds=self.silent_seconds,
            deadline_seconds=self.deadline_seconds,
            stop=self._stop,
            on_cpu=self._device.type == "cpu",
        )
        ranks.__enter__()
        self._ranks = ranks
        assert ranks.group is not None, "all ranks have joined"
        return ranks.group

    def check(self) -> None:
        """Raise `LearnerRankLost` where a rank is gone or silent."""
        if self._ranks is not None:
            self._ranks.check()

    def lost(self) -> LearnerRankLost | None:
        """Which rank is why something failed just now."""
        return None if self._ranks is None else self._ranks.lost()


class LearnerRanks:
    """All ranks but the first, from their start to their end. A context manager."""

    def __init__(
        self, size: int, *, silent_seconds: float, deadline_seconds: float, stop: threading.Event, on_cpu: bool = False
    ) -> None:
        """`silent_seconds`: longest silence of a rank, of its start as well. `deadline_seconds`: longest wait in a deed.

        `on_cpu`: even where there are GPUs.
        """
        self.size = size
        self._silent_seconds = silent_seconds
        self._deadline_seconds = deadline_seconds
        self._stop = stop
        self._on_cpu = on_cpu
        self._ranks: list[_Rank] = []
        self._cause: LearnerRankLost | None = None
        self._found = threading.Event()
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._look, name="ranks", daemon=True)
        self._pipe: tuple[int, int] | None = None
        self._host: TCPStore | None = None
        self.group: Ranks | None = None

    def __enter__(self) -> Self:
        """Start them, and join them as rank 0. Raises `LearnerRankLost`, `DeadlineExceeded` or `Stopped`."""
        _stay_on_this_machine()
        try:
            self._host = host_store(ADDRESS, self.size, self._deadline_seconds)
            place = Place(rank=0, size=self.size, local_rank=0, address=ADDRESS, port=self._host.port)
            # Another object than the host: it fails when that goes, in the middle of a wait as well.
            store = store_of(place, self._deadline_seconds)
            store.set(DEADLINE, str(self._deadline_seconds))
            self._pipe = os.pipe()
            self._ranks = [self._start(replace(place, rank=rank, local_rank=rank)) for rank in range(1, self.size)]
            self._watch.start()
            for rank in range(1, self.size):
                wait_for(
                    f"rank {rank} of {self.size} of the learner to start",
                    lambda rank=rank: self._raise_cause() or store.check([arrival(rank)]) or None,
                    deadline_seconds=self._deadline_seconds,
                    stop=self._stop,
                )
            device = own_device(0, on_cpu=self._on_cpu)
            self.group = self._join(place, store, device)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # In the middle of a deed nobody hears what is announced, and a rank holds nothing that could be lost.
        self.end(told=kind is None)

    def _join(self, place: Place, store: TCPStore, device: torch.device) -> Ranks:
        """Be rank 0 of the group. Raises `LearnerRankLost`, or `DeadlineExceeded` where another lives and does not come."""
        try:
            return Ranks(place, store, device=device, deadline_seconds=self._deadline_seconds)
        except (RuntimeError, DeadlineExceeded) as error:
            cause = self.lost()
            if cause is None:
                raise
            raise cause from error

    def check(self) -> None:
        """Raise `LearnerRankLost` where one is gone or silent."""
        self._raise_cause()

    def lost(self) -> LearnerRankLost | None:
        """Which rank is why something failed just now; None: none is."""
        self._found.wait(CAUSE_SECONDS)
        return self._cause

    def end(self, *, told: bool = False) -> None:
        """See that no rank is left. `told`: they are told, and may end by themselves."""
        self._ending.set()
        group, self.group = self.group, None
        told = told and group is not None and self._cause is None and self._tell_to_leave(group)
        deadline = time.monotonic() + (LEAVE_SECONDS if told else 0.0)
        for rank in self._ranks:
            try:
                rank.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
        if self._watch.is_alive():
            self._watch.join()
        if group is not None:
            group.leave()
        self._host = None
        for rank in self._ranks:
            rank.beats.close()
            rank.last_words.close()
        self._ranks = []
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

    def _tell_to_leave(self, group: Ranks) -> bool:
        try:
            group.announce(None)
        except RuntimeError as error:
            logger.warning("the ranks of the learner are killed, since they cannot be told to leave: %s", error)
            return False
        return True

    def _start(self, place: Place) -> _Rank:
        assert self._pipe is not None
        beats, beats_end = os.pipe()
        words, words_end = os.pipe()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
            **place.environment(),
            "PYTHONPATH": python_path(),
            "PYTHONUNBUFFERED": "1",
            **({"CUDA_VISIBLE_DEVICES": ""} if self._on_cpu else {}),
            "AGRPO_INCARNATION": new_incarnation(f"{STAGE}-{place.rank}"),
            "AGRPO_SUPERVISOR_PID": str(os.getpid()),
            "AGRPO_SUPERVISOR_FD": str(self._pipe[0]),
            "AGRPO_REPORT_FD": str(words_end),
            "AGRPO_BEAT_FD": str(beats_end),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agrpo.stages", STAGE, "-"],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(self._pipe[0], words_end, beats_end),
        )
        os.close(beats_end)
        os.close(words_end)
        os.set_blocking(beats, False)
        logger.info("rank %d of %d of the learner started as process %d", place.rank, place.size, process.pid)
        return _Rank(
            rank=place.rank,
            process=process,
            beats=os.fdopen(beats, "rb", buffering=0),
            last_words=os.fdopen(words, "rb", buffering=0),
        )

    def _raise_cause(self) -> None:
        if self._cause is not None:
            raise self._cause

    def _look(self) -> None:
        """In a thread: find the first rank that is gone or silent, and see that nobody waits for it.

        The others are ended, and the store with them, in which rank 0 may be waiting for it to join.
        """
        while not self._ending.wait(LOOK_SECONDS):
            losses = [loss for rank in self._ranks if (loss := self._loss_of(rank)) is not None]
            if losses:
                # One that is lost takes others along, which say that it was another.
                first = min(losses, key=lambda loss: loss.by_another)
                self._cause = LearnerRankLost(first.what, passing=first.passing)
                logger.error("%s; ending the other ranks", self._cause)
                for rank in self._ranks:
                    rank.process.kill()
                self._found.set()
                self._host = None
                return

    def _loss_of(self, rank: _Rank) -> _Loss | None:
        """What became of a rank. None: it is there and speaks."""
        who = f"rank {rank.rank} of {self.size} of the learner (process {rank.process.pid})"
        code = rank.process.poll()
        if code is not None:
            told = report.receive(rank.last_words)
            return _Loss(
                what=f"{who} {how_ended(code)}" + (f": {told}" if told else ""),
                passing=told is None or told.passing,
                by_another=told is not None and told.error_type in BY_ANOTHER,
            )
        # Only time in which this thread listened counts: while the machine sleeps nobody is accused.
        heard = bool(rank.beats.read(4096))
        rank.has_spoken = rank.has_spoken or heard
        rank.silent_seconds = 0.0 if heard else rank.silent_seconds + LOOK_SECONDS
        if rank.silent_seconds > (
            self._silent_seconds if rank.has_spoken else max(self._silent_seconds, SILENT_SECONDS)
        ):
            silent = f"{who} said nothing for {rank.silent_seconds:.0f} s: it is stopped, or a call that cannot be broken off "
            return _Loss(what=silent + "holds it", passing=True, by_another=False)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """What became of a rank."""

    what: str
    passing: bool
    """Whether it may fare better when the learner is started again."""
    by_another: bool
    """Whether it ended since another did, or did not come."""


def _stay_on_this_machine() -> None:
    """Have gloo talk over the loopback, unless something else is said: the name of a host may resolve to no address."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
