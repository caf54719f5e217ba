"""A run's own servers under its flow: how many, and when they are asked to end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.config import RunConfig, resolve
from agrpo.queue.run_folder import RunFolder
from flows import train
from tests.processes import alive, marked
from tests.stages.standing_in import SERVING, environment
from tests.stages.walk import settings

# Prefect leaves a socket to the garbage collector now and then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WORKING = "tests.flows.working_a_moment"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    yield from marked(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("engine", "servers"),
    [({"serve": True, "replicas": 3}, 3), ({"serve": False, "replicas": 1}, 0), ({"name": "transformers"}, 0), ({}, 0)],
)
def test_a_run_starts_as_many_servers_as_it_has_replicas(engine: dict[str, object], servers: int) -> None:
    assert train.num_servers(engine) == servers


@pytest.mark.parametrize(
    ("name", "names", "asked"),
    [
        ("server", ["server", "server-2", "generator", "scorer", "learner", "recorder"], True),
        ("recorder", ["server", "generator", "recorder"], True),
        ("learner", ["server", "learner"], False),
        ("recorder", ["recorder"], True),
        ("server", ["server"], False),
        ("server-2", ["server", "server-2", "recorder"], False),
    ],
)
def test_servers_are_asked_to_end_by_whoever_knows_that_their_work_is_done(
    name: str, names: list[str], asked: bool
) -> None:
    assert train.is_asked(name, names) is asked


def test_servers_outlast_the_stages_that_they_work_for(api: str, tmp_path: Path, mark: bytes) -> None:
    tree = settings(tmp_path / "model", tmp_path / "prompts.jsonl", tmp_path)
    tree["engine"] = {
        "name": "vllm",
        "serve": True,
        "replicas": 2,
        "environment": str(environment(tmp_path / "env", SERVING)),
    }
    built = RunConfig.build(resolve(values=tree)).settings
    document = {"name": tmp_path.name, "settings": {"tree": built.tree, "origins": {}}, "threads": 1}
    folder = RunFolder.create(str(tmp_path / "run"), document)
    assert train.train(run=folder.url, stages=["server", "server-2", WORKING]) == folder.url
    assert Path(folder.url, "seen").read_text() == "['http', 'http']"
    assert alive(mark) == []
