"""Pushing: whether the learner gives the engine's servers its weights itself, over NCCL, and how it goes on where it cannot.

The folder of a version is the truth, and is there before anything is pushed: a generator loads it wherever a push did not
come about. So a push that fails costs time, and never the run.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agrpo.config import RunConfig
from agrpo.engines.vllm import Vllm
from agrpo.errors import EngineLost, MissingPackage
from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.queue.turns import Turns
from agrpo.queue.versions import newest_version
from agrpo.records.progress import WeightsReady
from agrpo.records.turns import LearnerTurn
from agrpo.stages.clock import StepClock
from agrpo.stages.execution import Trainee
from agrpo.weights import nccl
from agrpo.weights.push import Push, PushFailed, Version
from agrpo.weights.sender import weights_to_send
from agrpo.weights.servers import Server, ServerFailed, Standing

if TYPE_CHECKING:
    from agrpo.weights.sender import Sender

logger = logging.getLogger(__name__)

BACKEND = "nccl"
FILESYSTEM = "filesystem"
FAILURES_TO_STOP = 3
TURN_SECONDS = 30.0
"""How long a generator may load or probe before its learner leaves the servers to it, for this version."""
LOOK_SECONDS = 0.02
LOCAL = "://"
"""In the URL of a run that is not kept in a folder."""


class Pusher:
    """One learner's. Does nothing for an engine without servers."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        trainee: Trainee,
        *,
        attempt: int,
        events: EventStream,
        clock: StepClock,
        stop: threading.Event,
    ) -> None:
        self._folder = folder
        self._engine = config.engine
        self._trainee = trainee
        self._attempt = attempt
        self._events = events
        self._clock = clock
        self._stop = stop
        self._turns = Turns(folder)
        self._sender: Sender | None = None
        self._push: Push | None = None
        self._transport: str | None = None
        """None: not chosen yet, since not every server has answered."""
        self._before: WeightsReady | None = None
        self._turn = LearnerTurn(attempt=attempt)
        self._failures = 0
        self._choose_by_what_is_here(config)

    def begin(self, version: int) -> None:
        """Before a version's record is written: whoever sees the record knows that the version is on its way."""
        if self._transport is None:
            self._choose_by_servers()
        if self._transport != BACKEND:
            return
        self._before = self._before or newest_version(self._folder)
        pushed = self._turn.pushed
        if pushed is not None and not self._await(f"version {pushed} to be proved", lambda: self._is_proved(pushed)):
            self._say(LearnerTurn(attempt=self._attempt, pushed=pushed))
            self._leave_to_generator(version, f"no generator has proved version {pushed} within {TURN_SECONDS:g} s")
            return
        self._say(LearnerTurn(attempt=self._attempt, pushing=version, pushed=pushed))

    def push(self, ready: WeightsReady) -> None:
        """After the record: have all servers serve the version, unless it has to be left to the generator."""
        if self._turn.pushing == ready.version:
            pushed = self._turn.pushed
            try:
                if self._await("the generator to have loaded", self._is_free):
                    pushed = ready.version
                    self._push_into_servers(ready)
                else:
                    self._leave_to_generator(ready.version, f"the generator has loaded for {TURN_SECONDS:g} s")
            finally:
                self._say(LearnerTurn(attempt=self._attempt, pushed=pushed))
        self._before = ready

    # ---- the choice

    def _choose_by_what_is_here(self, config: RunConfig) -> None:
        """What needs no server to be known. Raises `MissingPackage` or `EngineLost` where NCCL was asked for in vain."""
        engine = self._engine
        if not isinstance(engine, Vllm):
            self._transport = FILESYSTEM
            return
        if engine.weights == FILESYSTEM:
            self._settle(FILESYSTEM, 'engine.weights = "filesystem"')
            return
        self._sender = nccl.NcclSender(next(self._trainee.model.parameters()).device)
        reason = self._sender.obstacle()
        if config.adapter.rank is not None and config.adapter.publish == "adapter":
            reason = "an adapter is published by itself, as a folder"
        elif LOCAL in self._folder.url:
            reason = f"the run is kept at {self._folder.url}, and servers are brought back from folders"
        if reason is not None:
            self._refuse_or_settle(engine, [reason])

    def _choose_by_servers(self) -> None:
        """Once, as soon as all servers answer."""
        assert isinstance(self._engine, Vllm), "another engine has no servers"
        standings, silent = self._standings()
        if silent or not standings:
            logger.info("how weights reach the servers is chosen when all of them answer: %s", "; ".join(silent))
            return
        lacking = [problem for server, standing in standings.items() for problem in _problems(server, standing)]
        if lacking:
            self._refuse_or_settle(self._engine, lacking)
            return
        assert self._sender is not None, "what is here allows to send"
        self._push = Push(self._sender, self._engine.load_seconds, self._tell)
        where = ", ".join(server.url for server in standings)
        self._settle(BACKEND, f"{where} and this learner are set up for it")

    def _refuse_or_settle(self, engine: Vllm, reasons: Sequence[str]) -> None:
        """The folder instead. Raises where NCCL was asked for by name."""
        if engine.weights == BACKEND:
            kind = MissingPackage if reasons == [nccl.INSTALL] else EngineLost
            raise kind(f'engine.weights = "nccl": {"; ".join(reasons)}; or set engine.weights = "filesystem"')
        self._settle(FILESYSTEM, "; ".join(reasons))

    def _settle(self, transport: str, reason: str) -> None:
        self._transport = transport
        logger.info("weights reach the servers by %s: %s", transport, reason)
        self._events.write("weights_transport", attempt=self._attempt, transport=transport, reason=reason)

    def _standings(self) -> tuple[dict[Server, Standing], list[str]]:
        """How every server that answers stands, and a sentence for each that does not."""
        assert isinstance(self._engine, Vllm), "another engine has no servers"
        engine = self._engine
        key = os.environ.get(engine.api_key_variable) if engine.api_key_variable else None
        urls = self._folder.server_urls() if engine.serve else engine.urls()
        found: dict[Server, Standing] = {}
        silent: list[str] = []
        for server in [Server(url, key) for url in urls]:
            try:
                found[server] = server.standing()
            except ServerFailed as failed:
                silent.append(str(failed))
        return found, silent

    # ---- one push

    def _push_into_servers(self, ready: WeightsReady) -> None:
        assert self._push is not None, "the transport was chosen"
        version, (standings, silent) = self._version(ready), self._standings()
        assert version is not None, "the folder was just written"
        for why in silent:
            logger.warning("version %d is loaded there when it is back: %s", ready.version, why)
        if not standings:
            self._note_failure(ready.version, "; ".join(silent) or "the run has started no server yet")
            return
        weights, before = lambda: weights_to_send(self._trainee.model), self._version(self._before)
        try:
            with self._clock.part("sync_transfer"):
                took = self._push.push(standings, weights, version, before)
                self._clock.move("sync_pause", took["pause"] + took["resume"])
        except PushFailed as failed:
            self._note_failure(ready.version, str(failed))
            return
        self._failures = 0
        seconds = {f"{phase}_seconds": spent for phase, spent in took.items()}
        logger.info("version %d pushed: %s", ready.version, ", ".join(f"{p} {s:.2f} s" for p, s in took.items()))
        self._events.write("pushed", attempt=self._attempt, version=ready.version, **seconds)

    def _note_failure(self, version: int, reason: str) -> None:
        self._failures += 1
        self._leave_to_generator(version, reason)
        if self._failures == FAILURES_TO_STOP:
            assert self._push is not None, "the transport was chosen"
            self._push.close()
            self._settle(FILESYSTEM, f"{FAILURES_TO_STOP} pushes in a row have failed, the last one: {reason}")
            logger.warning("no version is pushed any more: %d pushes in a row have failed", FAILURES_TO_STOP)

    def _leave_to_generator(self, version: int, reason: str) -> None:
        logger.warning("version %d goes to the servers through its folder: %s", version, reason)
        self._events.write("push_failed", attempt=self._attempt, version=version, reason=reason)

    def _version(self, ready: WeightsReady | None) -> Version | None:
        place = None if ready is None else self._folder.filesystem.local_folder(ready.folder)
        return None if ready is None or place is None else Version(number=ready.version, folder=place)

    # ---- turns

    def _say(self, turn: LearnerTurn) -> None:
        self._turn = turn
        self._turns.write(turn)

    def _is_free(self) -> bool:
        turn = self._turns.generator()
        return turn is None or turn.loading is None

    def _is_proved(self, version: int) -> bool:
        """Whether a generator has acknowledged it."""
        folder = self._folder
        return any(folder.acknowledgement(engine, version) is not None for engine in reversed(folder.engines()))

    def _await(self, what: str, ready: Callable[[], bool]) -> bool:
        """Whether it came about within `TURN_SECONDS`, and before the run is asked to stop."""
        began = time.monotonic()
        while not ready():
            waited = time.monotonic() - began
            if waited > TURN_SECONDS or self._stop.wait(LOOK_SECONDS):
                return False
            self._tell(what, waited)
        return True

    def _tell(self, what: str, waited: float) -> None:
        if waited >= 1.0:
            self._folder.beat("learner", what, waited)


def _problems(server: Server, standing: Standing) -> list[str]:
    """What keeps weights from being pushed into a server, each with the flag that mends it."""
    found: list[str] = []
    if standing.backend != BACKEND:
        has = f"the backend {standing.backend}" if standing.backend else "none"
        found.append(f"""{server.url} has {has}; start it with --weight-transfer-config '{{"backend": "nccl"}}'""")
    if not standing.gives_labels:
        found.append(
            f"{server.url} does not say which weights sampled a token; start it with --enable-scale-out, or the label of tokens "
            "around a push would be a guess"
        )
    return found
