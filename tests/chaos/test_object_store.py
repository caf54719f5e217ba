"""A whole run whose folder is in an object store, with two generators and two scorers, under a killer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.chaos.promises import Torment, kill_again_and_again

SERVER = Path(__file__).parent / "object_server.py"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where every process of the test finds an S3 store. The server is a process of its own, so that it answers at once."""
    import fsspec

    server = subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    found = {"AWS_ENDPOINT_URL": server.stdout.readline().strip(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**found, **keys}.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    type(store).clear_instance_cache()  # of another test's server
    store.mkdir("runs")
    with server:  # whose input ends with the block, and the server with it
        yield f"s3://runs/{uuid4().hex}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_in_an_object_store_survives_its_killer(api: str, bucket: str, tiny_model: Path, tmp_path: Path) -> None:
    torment = Torment(seed=1, kills=3, flow_every=99, steps=8, victims=("learner", "generator", "scorer-2"))
    outcome = kill_again_and_again(tiny_model, tmp_path, "asynchronous", torment, url=bucket)
    print(outcome)
    assert outcome.flows == 1
    assert outcome.restarts in (2, 3), "the last kill may meet a stage whose work is over"
