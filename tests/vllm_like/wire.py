"""HTTP/1.1 as far as a client of vLLM needs it, and every way in which an answer can go missing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b""
    content_type: str | None = "application/json"
    closes: bool = False
    """The connection ends after it without having said so, as uvicorn's does after an unhandled exception."""
    is_dropped: bool = False
    """Nothing is sent, and the connection is reset."""
    is_cut: bool = False
    """The connection ends in the middle of the body."""

    @staticmethod
    def of(document: Any, status: int = 200, *, closes: bool = False) -> Answer:
        body = json.dumps(document, separators=(",", ":")).encode()
        return Answer(status=status, body=body, closes=closes)

    def with_document(self, document: Any) -> Answer:
        return replace(self, body=json.dumps(document, separators=(",", ":")).encode())


Handle = Callable[[Request], Awaitable[Answer]]


class Connection(asyncio.Protocol):
    """One client's. A client that goes away cancels what is being done for it."""

    def __init__(self, handle: Handle, connections: set[Connection]) -> None:
        self._handle = handle
        self._connections = connections
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._task is None and (request := self._take()) is not None:
            self._task = asyncio.create_task(self._serve(request))

    def _take(self) -> Request | None:
        """The request at the head of the buffer, if it has come whole."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return None
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        return Request(
            method=method, path=parts.path, query=dict(parse_qsl(parts.query)), headers=headers, body=rest[:length]
        )

    async def _serve(self, request: Request) -> None:
        try:
            answer = await self._handle(request)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            answer = Answer.of({"error": f"this server failed: {error!r}"}, 500, closes=True)
        transport, self._task = self._transport, None
        assert transport is not None
        if answer.is_dropped:
            transport.abort()
            return
        content_type = f"content-type: {answer.content_type}\r\n" if answer.content_type else ""
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\nserver: uvicorn\r\n"
            f"content-length: {len(answer.body)}\r\n{content_type}\r\n"
        )
        transport.write(head.encode() + (answer.body[: len(answer.body) // 2] if answer.is_cut else answer.body))
        if answer.closes or answer.is_cut:
            transport.close()
        else:
            self._next()
