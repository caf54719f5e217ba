"""A Prefect API for a flow that is run by hand: the configured one, or a server of this process' own.

Prefect would start a temporary server by itself, in the process group of the terminal. Ctrl-C ends that server first,
and the flow then tries for minutes to write its last state to it (measured: over 90 s); killed, the flow leaves it
behind. This one has a session of its own and a reaper, and keeps its history in `.prefect`.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from prefect.context import refresh_global_settings_context
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE

from agrpo.errors import DeadlineExceeded, StageFailed
from agrpo.stages.reaper import Reaper

START_SECONDS = 120.0
END_SECONDS = 5.0


def ensure_api() -> None:
    """After it, flows of this process find an API. A server that had to be started serves the process to its end."""
    if PREFECT_API_URL.value() or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        return
    # The environment and not a settings context: Prefect's own threads, which copy no context, need it too.
    os.environ["PREFECT_API_URL"] = _start_server()
    refresh_global_settings_context()


def _start_server() -> str:
    """The URL of its API. Prefect's threads write their last words before `atexit` ends it."""
    home = Path(os.environ.get("PREFECT_HOME", ".prefect")).absolute()
    home.mkdir(parents=True, exist_ok=True)
    try:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    except OSError as error:
        raise StageFailed(
            f"Prefect's server needs a port of 127.0.0.1 and gets none: {error.strerror}; free one, or start a server "
            "elsewhere and set PREFECT_API_URL to its address"
        ) from None
    command = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui", "--no-scheduler"]
    reaper = Reaper()
    with open(home / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *command, "--no-late-runs"],
            env={**os.environ, "PREFECT_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    reaper.remember(process.pid)
    atexit.register(_end, process, reaper)
    url = f"http://127.0.0.1:{port}/api"
    _await_answer(process, url, home / "server.log")
    return url


def _await_answer(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # A proxy of the environment has nothing to do with this machine's own ports.
    direct = build_opener(ProxyHandler({}))
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with direct.open(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise DeadlineExceeded(
        f"Prefect's server gave no answer at {url} within {START_SECONDS:.0f} s (exit code {process.poll()}); read {log}, "
        "or start one with `prefect server start` and set PREFECT_API_URL to its address"
    )


def _end(process: subprocess.Popen[bytes], reaper: Reaper) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(END_SECONDS)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        process.poll()
    finally:
        # The reaper kills what is left of the group.
        reaper.close()
