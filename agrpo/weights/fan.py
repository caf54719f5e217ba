"""All servers of a push as one: each call goes to every one of them at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agrpo.weights.servers import Server, ServerFailed

logger = logging.getLogger(__name__)


class Fan:
    """What a sender drives (`agrpo.weights.sender.Servers`), and what the push at hand has done to each server."""

    def __init__(self, servers: Sequence[Server], num_workers: Sequence[int], seconds: float) -> None:
        self.servers = list(servers)
        self.num_workers = sum(num_workers)
        self._offsets = {server: 1 + sum(num_workers[:place]) for place, server in enumerate(servers)}
        """Rank of each server's first worker; the learner's is 0."""
        self._seconds = seconds
        self.forget("")

    def forget(self, label: str) -> None:
        """Begin another push, of the version with this label."""
        self._label = label
        self.begun: set[Server] = set()
        """Servers whose update may have begun: their weights are broken until it is finished."""
        self.finished: set[Server] = set()
        self.failed = threading.Event()
        """A server has failed in a call in which all others wait for it."""
        self.failure: ServerFailed | None = None

    def all(self, call: Callable[[Server], object]) -> None:
        """Call all at once, and wait for all. Raises the first `ServerFailed`."""
        with ThreadPoolExecutor(len(self.servers), thread_name_prefix="push") as pool:
            calls = [pool.submit(call, server) for server in self.servers]
        for each in calls:
            each.result()

    def leave(self) -> None:
        """Have the servers leave the group of before. One that is in none, or cannot, says so in the log."""
        try:
            self.all(lambda server: server.ask("POST", "/shutdown_weight_transfer_engine", None, self._seconds))
        except ServerFailed as error:
            logger.info("%s", error)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        def joined(server: Server) -> None:
            info = {**init_info, "rank_offset": self._offsets[server]}
            self._together(server, "/init_weight_transfer_engine", {"init_info": info})

        self.all(joined)

    def start_weight_update(self) -> None:
        def begun(server: Server) -> None:
            self.begun.add(server)
            server.ask("POST", "/start_weight_update", None, self._seconds)

        self.all(begun)

    def update_weights(self, update_info: Any) -> None:
        self.all(lambda server: self._together(server, "/update_weights", {"update_info": update_info}))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        body = {"weight_version": weight_version or self._label}

        def finished(server: Server) -> None:
            server.ask("POST", "/finish_weight_update", body, self._seconds)
            self.finished.add(server)

        self.all(finished)

    def _together(self, server: Server, path: str, body: dict[str, Any]) -> None:
        """A call in which every member of the group waits for every other: where one fails, the others must be told."""
        try:
            server.ask("POST", path, body, self._seconds)
        except ServerFailed as error:
            self.failure = self.failure or error
            self.failed.set()
            raise
