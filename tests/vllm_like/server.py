"""A server in a thread of this process: started, stopped, closed for a while, started again."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.vllm_like.faults import Do, Fault, Faults
from tests.vllm_like.options import Options
from tests.vllm_like.routes import Recorded, Service
from tests.vllm_like.wire import Connection

T = TypeVar("T")
HOST = "127.0.0.1"
DEADLINE_SECONDS = 60.0
DEATH_SECONDS = 0.2
"""Between an engine's death and the end of its server."""


class Server:
    """`with Server(model) as server:` answers at `server.url`. Its port stays the same when it is started again."""

    def __init__(self, model: Path, options: Options | None = None, *, port: int = 0) -> None:
        self.model = model
        self.options = options or Options()
        self.port = port
        self.faults = Faults()
        self.requests: list[Recorded] = []
        """All that came, in order, over all starts."""
        self._connections: set[Connection] = set()
        self._taken: set[asyncio.Task[Any]] = set()
        """Connections that are being set up."""
        self._listener: socket.socket | None = None
        self._service: Service | None = None
        self._watch: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-like", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether its port takes connections."""
        return self._listener is not None

    @property
    def service(self) -> Service:
        assert self._service is not None, "the server was not started"
        return self._service

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Server:
        self._thread.start()
        self._do(self._begin())
        return self

    def stop(self) -> None:
        self._do(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_SECONDS)
        self._loop.close()

    def fault(self, do: Do, path: str | None = None, **settings: Any) -> None:
        """Set a fault; by default for completions."""
        self.faults.add(Fault(do=do, **({} if path is None else {"path": path}), **settings))

    def asked(self, path: str, method: str = "POST") -> list[Recorded]:
        """The requests of one path."""
        return [each for each in list(self.requests) if each.path == path and each.method == method]

    def close_port(self) -> None:
        """Refuse connections, and reset those that are open. What was computed for them is given up."""
        self._do(self._close_port())

    def open_port(self) -> None:
        self._do(self._open_port())

    def end(self) -> None:
        """As a process that was killed: nothing is left but the port's number."""
        self._do(self._finish())

    def restart(self, options: Options | None = None) -> None:
        """As a process that ended and began again: the first weights, their label `default`, nothing in flight."""
        self.options = options or self.options
        self._do(self._again())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(DEADLINE_SECONDS)

    async def _again(self) -> None:
        await self._finish()
        await self._begin()

    async def _begin(self) -> None:
        self._service = Service(self.model, self.options, self.faults, self.requests)
        await self._open_port()
        self._watch = asyncio.create_task(self._watch_for_death(self._service))

    async def _finish(self) -> None:
        await self._close_port()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._service is not None:
            await self._service.scheduler.close()

    async def _watch_for_death(self, service: Service) -> None:
        deaths = [asyncio.create_task(service.dies.wait()), asyncio.create_task(service.scheduler.died.wait())]
        try:
            await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            if not service.dies.is_set():
                await asyncio.sleep(DEATH_SECONDS)
        finally:
            for task in deaths:
                task.cancel()
        await self._close_port()
        await service.scheduler.close()

    async def _open_port(self) -> None:
        listener = socket.create_server((HOST, self.port), backlog=128)
        listener.setblocking(False)
        self._listener, self.port = listener, listener.getsockname()[1]
        self._loop.add_reader(listener, self._take, listener, self.service)

    def _take(self, listener: socket.socket, service: Service) -> None:
        """One connection. asyncio's own server leaks those that it accepted in the moment before it is closed."""
        try:
            taken, _ = listener.accept()
        except OSError:  # its client is gone again
            return
        connection = Connection(service.handle, self._connections)
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: connection, taken))
        self._taken.add(task)
        task.add_done_callback(self._taken.discard)

    async def _close_port(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await asyncio.gather(*self._taken, return_exceptions=True)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # an aborted one is closed in the loop's next round
