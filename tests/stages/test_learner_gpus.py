"""How many GPUs the learner takes where nothing is said of its processes."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.runs.memory import plan_memory
from agrpo.stages.ranks import ranks_asked
from tests.runs.made import a_machine
from tests.test_config import changed

GPUS = 4


@pytest.fixture(autouse=True)
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the settings name, in the folder in use."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}))


def taken(monkeypatch: pytest.MonkeyPatch, *urls: str, **workers: Any) -> int:
    """Processes of the learner on a machine with four GPUs, as it starts them and as memory is planned for them."""
    monkeypatch.setattr("agrpo.stages.ranks.num_gpus", lambda: GPUS)
    tree = changed(engine={"name": "vllm", "base_urls": list(urls)}, workers=workers)
    config = RunConfig.build(resolve(values=tree))
    ranks = ranks_asked(config)
    names = [place.name for place in plan_memory(config, a_machine(64, gpus=(80,) * GPUS)).places]
    assert names[1] == ("the learner's GPU" if ranks == 1 else f"each of the learner's {ranks} GPUs")
    return ranks


@pytest.mark.parametrize(
    "url",
    ["http://localhost:8000", "http://127.0.0.1:8001", "http://[::1]:8000", f"http://{socket.gethostname()}:8000"],
)
def test_beside_servers_of_this_machine_it_takes_one_and_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO):
        assert taken(monkeypatch, "http://gpu-1:8000", url) == 1
    (told,) = [record.message for record in caplog.records]
    assert told.startswith("one process of the learner on the first of 4 GPUs")
    assert "workers.learner_processes" in told


def test_without_a_url_the_servers_are_on_this_machine(monkeypatch: pytest.MonkeyPatch):
    assert taken(monkeypatch) == 1


def test_beside_servers_of_other_machines_it_takes_all(monkeypatch: pytest.MonkeyPatch):
    assert taken(monkeypatch, "http://gpu-1:8000", "http://localhost.gpu-2:8000") == GPUS


def test_what_is_said_of_its_processes_holds(monkeypatch: pytest.MonkeyPatch):
    assert taken(monkeypatch, "http://localhost:8000", learner_processes=3) == 3
