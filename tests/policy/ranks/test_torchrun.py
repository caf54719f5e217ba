from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.policy.digest import tensor_digests
from agrpo.policy.trainee import Origin, begin
from agrpo.stages.ranks import Recruiter
from tests.policy.ranks.conftest import numbers_of_step, rows_of_step

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_ranks_that_torchrun_started_do_the_same(
    recruiter: Recruiter, origin_of: Callable[..., Origin], tmp_path: Path
):
    origin, out = origin_of(), tmp_path / "out.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command += [
        "--master-port",
        str(free_port()),
        "-m",
        "tests.policy.ranks.under_torchrun",
        origin.model.path,
        str(out),
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    trainee = begin(origin, recruiter.form(2), recruiter)
    losses = [trainee.update(rows_of_step(step), numbers_of_step(step), lambda: None).loss for step in range(3)]
    assert (found["losses"], found["digests"]) == (losses, tensor_digests(trainee.model))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(autouse=True)
def _no_ranks_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process's environment names ranks."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
