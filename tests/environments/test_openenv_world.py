"""What agrpo asks a server of OpenEnv before a rollout begins, of a server that says what a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agrpo.environments.adapters.openenv_server.world import Server, world_at
from agrpo.errors import EnvironmentFault

CALL = {"action": {"properties": {"tool_name": {}, "arguments": {}}}}


@contextmanager
def saying(tool: str, argument: str, *, port: int = 0, away: int = 0) -> Iterator[Server]:
    """A server with one tool of one argument, which says 503 to as many requests first."""
    schema = {"properties": {argument: {"type": "string"}}}
    listed = {"result": {"tools": [{"name": tool, "description": "Use it.", "input_schema": schema}]}}
    answers: dict[str, Any] = {"/metadata": {"name": "Desk"}, "/schema": CALL, "/mcp": listed}
    left = [away]

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left[0] -= 1
            data = json.dumps(answers[self.path]).encode()
            self.send_response(503 if left[0] >= 0 else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", port), Answering)
    thread = threading.Thread(target=served.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Server(url=f"http://127.0.0.1:{served.server_port}", connect_seconds=20.0)
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def test_a_server_that_is_on_its_way_back_is_waited_for():
    with saying("look_up", "word") as server:
        assert [action.name for action in world_at(server).actions] == ["look_up"]
    port = int(server.url.rpartition(":")[2])
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.append(world_at(server).name))
    asking.start()
    time.sleep(0.4)
    with saying("look_up", "word", port=port, away=1):
        asking.join(20)
    assert told == ["Desk"]


def test_one_that_stays_away_is_told_once_its_time_is_over():
    with saying("look_up", "word") as server:
        url = server.url
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=rf"{url} cannot be asked \(ConnectError: .*start it, and see that"):
        world_at(Server(url=url, connect_seconds=0.6))
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("argument", ["from", "class", "file-name", "self", ""])
def test_an_argument_that_no_method_can_have_is_refused_with_its_tool_and_server(argument: str):
    with saying("look_up", argument) as server, pytest.raises(EnvironmentFault) as refused:
        world_at(server)
    assert f'{server.url}: the tool "look_up" takes an argument "{argument}"; expected names' in str(refused.value)


@pytest.mark.parametrize("tool", ["reset", "get_reward", "_hidden"])
def test_a_tool_with_a_name_of_agrpos_own_is_refused(tool: str):
    with saying(tool, "word") as server, pytest.raises(EnvironmentFault, match=f'has a tool "{tool}", a name that is'):
        world_at(server)
