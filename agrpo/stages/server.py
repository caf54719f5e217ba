"""The server: keeps one vLLM of the run's own at work, as a child in the group of this process.

It writes where the server answers, says that it lives, and ends with an error when the server does: whoever started this
stage starts it again, and the generator loads the newest weights into the new server before it asks it for anything.
"""

from __future__ import annotations

import http.client
import logging
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from urllib.parse import urlsplit

from agrpo.config import RunConfig, load_settings
from agrpo.engines import Needs
from agrpo.engines.serving_vllm.command import HOST, Command, server_command
from agrpo.engines.serving_vllm.environment import find_installation
from agrpo.engines.vllm import Vllm
from agrpo.errors import ConfigError, DeadlineExceeded, EngineError
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.context import StageContext
from agrpo.stages.names import START_OF_VLLM, number_of
from agrpo.stages.reaper import descendants, end_relatives

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
BEAT_SECONDS = 1.0
HEALTH_SECONDS = 2.0
"""Longest wait for one answer to `/health`; as long a pause between two questions once it is healthy."""
SILENT_SECONDS = 120.0
"""How long a server that was healthy may leave `/health` unanswered: one that is busy answers late."""
REFUSED_SECONDS = 10.0
"""How long it may refuse it, by its answer or by taking no connection: its engine has died, and it does not always end."""
ALONE_SECONDS = 15.0
"""How long after the run's last step a server that nobody has asked to end goes on."""
ENDING_SECONDS = 1.5
"""What is kept of the grace for killing what does not end by itself, before this process is killed."""
LEAST_GRACE_SECONDS = 0.5
KEPT_LINES = 400
"""Of its output: what fails in an engine core is said well before the API server's last word."""
TOLD_LINES = 4
"""Of those, in an error."""
_ERROR = re.compile(r"\b\w*(?:Error|Exception): \S.*")
_IN_ORDER = re.compile(r"\b(?:INFO|WARNING) ")


def run(context: StageContext) -> None:
    """Keep a server at work until asked to end, or the run has its last step. Raises `EngineError` when it dies."""
    folder = RunFolder.open(context.run_url)
    folder.forget_servers([context.stage])
    config = RunConfig.build(load_settings(folder.document()))
    engine = config.engine
    if not isinstance(engine, Vllm) or not engine.serve:
        raise ConfigError("engine.serve: this run has no servers of its own; set it to true with the engine vllm")
    needs = Needs(
        sampling=config.sampling,
        max_staleness=config.asynchronous.max_staleness,
        adapter_rank=config.served_adapter_rank,
    )
    found, number = find_installation(engine.environment), number_of(context.stage)
    processes = config.workers.learner_processes
    command = server_command(
        engine, config.model, needs, found, port=_free_port(), number=number, learner_processes=processes
    )
    server = _Server(command)
    try:
        keeper = _Keeper(context, folder, server, command.url)
        keeper.start(engine.start_seconds)
        keeper.keep()
    finally:
        folder.forget_servers([context.stage])
        server.end(max(config.stop.grace_seconds - ENDING_SECONDS, LEAST_GRACE_SECONDS))


class _Keeper:
    """One incarnation's loop around its server."""

    def __init__(self, context: StageContext, folder: RunFolder, server: _Server, url: str) -> None:
        self.context = context
        self.folder = folder
        self.server = server
        self.url = url
        self.began = time.monotonic()
        self.told_at = 0.0
        self.answered_at = self.began
        """When `/health` said 200 last."""
        self.refused: str | None = None
        """How it turned `/health` away, where that was its last answer."""

    def start(self, deadline_seconds: float) -> None:
        """Wait until it is healthy, and write where it answers."""
        while not self.context.stop.is_set():
            self.server.check()
            waited = time.monotonic() - self.began
            if self._ask():
                self.server.look()
                self.folder.write_server(self.context.stage, self.url)
                logger.info("vLLM serves at %s after %.0f s", self.url, waited)
                return
            if waited > deadline_seconds:
                raise DeadlineExceeded(
                    f"waited {waited:.0f} s for {START_OF_VLLM}; the limit is {deadline_seconds:g} s (engine.start_seconds); "
                    f"its last lines: {self.server.last_lines()}"
                )
            self._tell(START_OF_VLLM, waited)
            self.context.stop.wait(LOOK_SECONDS)

    def keep(self) -> None:
        """Watch it until the stop, or some seconds beyond the end of the run."""
        finished_at: float | None = None
        while not self.context.stop.is_set():
            self.server.check()
            now = time.monotonic()
            silent = now - self.answered_at
            if silent > HEALTH_SECONDS and not self._ask():
                self._check_silence(silent)
            if now - self.told_at >= BEAT_SECONDS:
                self.server.look()
                finished_at = (finished_at or now) if self.folder.has_finished(self.folder.hint()) else None
                self._tell(None, 0.0)
                self._check_named()
            if finished_at is not None and now - finished_at > ALONE_SECONDS:
                logger.info(
                    "the run had its last step %.0f s ago, and nobody asked for the end of its server", ALONE_SECONDS
                )
                return
            self.context.stop.wait(LOOK_SECONDS)

    def _check_named(self) -> None:
        """Raises `EngineError` where the generator has given up on it."""
        if self.url not in self.folder.server_urls():
            raise EngineError(
                f"vLLM at {self.url} could not be given its weights back after a load that failed; it is started again"
            )

    def _check_silence(self, seconds: float) -> None:
        """Raise `EngineError` where it has not been healthy for too long."""
        how, limit = self.refused or "left /health unanswered", REFUSED_SECONDS if self.refused else SILENT_SECONDS
        if seconds > limit:
            raise EngineError(
                f"vLLM at {self.url} {how} for {seconds:.0f} s, more than {limit:g} s; its last lines: "
                f"{self.server.last_lines()}"
            )

    def _ask(self) -> bool:
        """Whether it is healthy."""
        self.refused = None
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or HOST, place.port, timeout=HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        except ConnectionRefusedError:
            self.refused = "took no connection"
            return False
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if status != http.client.OK:
            self.refused = f"answered /health with {status}"
            return False
        self.answered_at = time.monotonic()
        return True

    def _tell(self, waiting_for: str | None, waited: float) -> None:
        if time.monotonic() - self.told_at >= BEAT_SECONDS:
            self.told_at = time.monotonic()
            self.folder.beat(self.context.stage, waiting_for, waited)


class _Server:
    """The child, and what it prints. It stays in this process's group, which is ended as a whole."""

    def __init__(self, command: Command) -> None:
        logger.info("starting %s", " ".join(command.line))
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command.line,
            env=command.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._relatives: dict[int, str] = {}
        self._reader = threading.Thread(target=self._forward, name="output", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raises `EngineError` where it has ended."""
        code = self._process.poll()
        if code is None:
            return
        self._reader.join(LOOK_SECONDS)
        raise EngineError(f"vLLM ended by itself, {_how(code)}; its last lines: {self.last_lines()}")

    def look(self) -> None:
        """Remember what it has started: where it is killed, they are nobody's children, and live on."""
        self._relatives |= descendants({self._process.pid})

    def last_lines(self) -> str:
        """Those that tell of errors, oldest first and each once; where none does, the last ones."""
        with self._lock:
            lines = list(self._lines)
        errors = dict.fromkeys(
            found[0] for line in lines if (found := _ERROR.search(line)) and not _IN_ORDER.search(line)
        )
        return " | ".join(([*errors] or lines)[-TOLD_LINES:]) or "none"

    def end(self, grace_seconds: float) -> None:
        """Ask it to end, kill it after the grace, and then what it has started: that outlives it where it was killed."""
        self.look()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            logger.info("vLLM did not end within %.1f s; killed", grace_seconds)
            self._process.kill()
            self._process.wait()
        end_relatives(self._relatives)
        self._reader.join(LEAST_GRACE_SECONDS)

    def _forward(self) -> None:
        """To this stage's own output, where its supervisor reads it, until nobody can write any more."""
        with self._output:
            for line in self._output:
                self._take(line)

    def _take(self, line: bytes) -> None:
        # A progress bar redraws its line with carriage returns: only the last drawing is news.
        text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
        if text:
            with self._lock:
                self._lines.append(text)
            print(text, flush=True)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]
