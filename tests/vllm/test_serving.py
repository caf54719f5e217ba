"""The stage `server` with a real vLLM: it comes up as the run needs it, and a whole run trains through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agrpo.queue.run_folder import RunFolder
from tests.processes import until
from tests.vllm.conftest import RealServer
from tests.vllm.kept import asked

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.vllm


def test_a_server_is_started_as_the_run_needs_it(vllm_server: RealServer) -> None:
    [model] = asked(f"{vllm_server.url}/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == (str(vllm_server.model), 512)
    config = asked(f"{vllm_server.url}/server_info?config_format=json")["vllm_config"]["model_config"]
    assert (config["dtype"], config["logprobs_mode"], config["max_logprobs"]) == (
        *("torch.float32", "processed_logprobs", 20),
    )


def test_its_stage_speaks_while_nobody_asks_it_for_anything(vllm_server: RealServer) -> None:
    until(lambda: vllm_server.folder.beats()[0]["waiting_for"] is None, 10)
    [first] = vllm_server.folder.beats()
    until(lambda: vllm_server.folder.beats()[0]["at"] > first["at"], 10)
    assert first["stage"] == "server"
    assert "Application startup complete" in vllm_server.stage.log_path.read_text()


@pytest.mark.timeout(600)
def test_a_whole_run_trains_through_a_server_of_its_own(
    vllm_tree: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(toml(vllm_tree(tmp_path / "runs", stop={"max_steps": 4}, asynchronous={"max_staleness": 1})))
    command = [sys.executable, "-m", "agrpo", "train", str(file), "--folder", str(tmp_path / "run"), "--plain"]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    folder = RunFolder.open(str(tmp_path / "run"))
    assert folder.done_steps(0) == [1, 2, 3, 4]
    verified = subprocess.run(
        [*command[:3], "verify", folder.url], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    [served] = [stream for stream in folder.local.glob("logs/server-*.log")]
    assert "vLLM serves at http://127.0.0.1:" in served.read_text()


def toml(tree: dict[str, Any]) -> str:
    """Settings as a run file."""
    lines: list[str] = []
    for table, values in tree.items():
        for entry in values if isinstance(values, list) else [values]:
            lines += [f"[[{table}]]" if isinstance(values, list) else f"[{table}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    return "\n".join(lines)
