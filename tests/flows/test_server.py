"""The server that a flow brings along where none is configured."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from agrpo.errors import StageFailed
from flows import server


def test_without_a_free_port_the_flow_says_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    def no_port(address: tuple[str, int]) -> socket.socket:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket, "create_server", no_port)
    with pytest.raises(
        StageFailed, match=r"needs a port of 127\.0\.0\.1 and gets none: Address already in use; free one"
    ):
        server._start_server()
