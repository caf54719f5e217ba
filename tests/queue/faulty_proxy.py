"""A proxy before an S3 server that does to chosen requests what networks and lesser servers do."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

CONDITION = "If-None-Match"


class Fault(Enum):
    """What happens to a request."""

    NONE = "it is passed on"
    LOST_REPLY = "it is passed on, and the connection ends before the reply"
    CONFLICT = "409: another conditional request is under way"
    FORBIDDEN = "403: no right"
    FULL = "507: no storage left"
    UNCONDITIONAL = "it is passed on without its condition"


_REFUSALS = {
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.FORBIDDEN: (403, "AccessDenied"),
    Fault.FULL: (507, "StorageFull"),
}


@contextmanager
def faulty_proxy(endpoint: str, fault_of: Callable[[str, str], Fault]) -> Iterator[str]:
    """The address of a proxy before `endpoint`; `fault_of` is told the method and path of every request."""
    upstream = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = fault_of(self.command, self.path)
            if fault in _REFUSALS:
                status, code = _REFUSALS[fault]
                self.reply(status, {}, f"<Error><Code>{code}</Code><Message>{fault.value}</Message></Error>".encode())
                return
            connection = http.client.HTTPConnection(upstream)
            dropped = CONDITION if fault is Fault.UNCONDITIONAL else ""
            headers = {name: value for name, value in self.headers.items() if name.lower() != dropped.lower()}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if fault is Fault.LOST_REPLY:
                self.close_connection = True
                return
            self.reply(answer.status, dict(answer.getheaders()), content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_request

        def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
