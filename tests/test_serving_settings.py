"""Settings of servers that contradict one another, or what is installed, are refused by name before anything starts."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from agrpo.cli.commands.check import check
from agrpo.config import RunConfig, resolve
from agrpo.config.amendments import changes
from agrpo.errors import ConfigError
from agrpo.runs.beginning import refuse_problems, with_whole_paths
from agrpo.runs.serving import ask_servers, check_servers
from tests.stages.standing_in import SERVING, environment

WHOLE: dict[str, Any] = {
    "model": {"path": "m"},
    "prompts": {"name": "files", "path": "p.jsonl"},
    "rewards": [{"name": "exact_match"}],
    "stop": {"max_steps": 1},
}


def built(workers: dict[str, Any] | None = None, **engine: Any) -> RunConfig:
    return RunConfig.build(resolve(values={**WHOLE, "engine": {"name": "vllm", **engine}, "workers": workers or {}}))


@pytest.mark.parametrize(
    ("engine", "workers", "problem"),
    [
        ({"serve": True, "base_urls": ["http://a:1"]}, {}, "engine.base_urls: names servers that run elsewhere"),
        ({"replicas": 2}, {}, "engine.replicas: says how the run's own servers are started, and it has none"),
        ({"arguments": ["--enforce-eager"]}, {}, "engine.arguments: says how the run's own"),
        ({"environment": "there"}, {}, "engine.environment: says how the run's own"),
        ({"max_model_len": 512}, {}, "engine.max_model_len: says how the run's own"),
        (
            {"serve": True, "max_model_len": 64, "max_completion_length": 64},
            {},
            "engine.max_model_len = 64: a prompt and a completion of engine.max_completion_length = 64 tokens do not fit",
        ),
        ({"serve": True}, {"generators": 2}, "workers.generators = 2: one generator drives all servers of this engine"),
        ({}, {"generators": 3}, "workers.generators = 3: one generator drives all servers of this engine"),
    ],
)
def test_a_setting_that_contradicts_another_is_refused(
    engine: dict[str, Any], workers: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        built(workers, **engine)
    assert [told.startswith(problem) for told in caught.value.problems] == [True]


def test_servers_of_the_runs_own_may_be_several_and_those_elsewhere_too() -> None:
    built(serve=True, replicas=2, arguments=["--enforce-eager"], environment="there", max_model_len=4096)
    built(base_urls=["http://a:1", "http://b:1"])


def test_a_run_that_is_to_serve_where_vllm_is_not_is_told_before_it_begins(tmp_path: Path) -> None:
    (problem,) = check_servers(built(serve=True, environment=str(tmp_path)))
    assert problem.startswith(
        f"engine.serve: engine.environment = '{tmp_path}': {tmp_path} has no bin/python. `make vllm`"
    )
    assert check_servers(built()) == []


def test_what_the_installed_build_cannot_do_is_told_before_a_run_begins(tmp_path: Path) -> None:
    has = str(environment(tmp_path / "env", SERVING))
    assert check_servers(built(serve=True, environment=has)) == []
    problems = check_servers(built(serve=True, environment=has, top_k=8, arguments=["--port=1"]))
    assert [problem.partition(":")[0] for problem in problems] == ["engine.arguments", "engine.top_k, top_p or min_p"]


def test_check_says_what_train_would_refuse_of_an_adapter_that_is_served(tmp_path: Path) -> None:
    """How it is published is settled in both, by the same rule."""
    has = environment(tmp_path / "env", SERVING)
    lines = [
        '[model]\npath = "m"\n[prompts]\nname = "files"\npath = "p.jsonl"\n[[rewards]]\nname = "exact_match"',
        f'[stop]\nmax_steps = 1\n[adapter]\nrank = 1000\n[engine]\nname = "vllm"\nserve = true\nenvironment = "{has}"',
    ]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    told = 'adapter.rank = 1000: vLLM serves adapters up to rank 512; lower it, or set adapter.publish = "merged"'
    for refuse in (lambda: check(tmp_path / "run.toml"), lambda: refuse_problems(resolve(tmp_path / "run.toml"))):
        with pytest.raises(ConfigError) as caught:
            refuse()
        assert told in caught.value.problems


def test_a_run_may_go_on_with_servers_elsewhere_and_keeps_what_decides_its_values() -> None:
    has = built(serve=True, arguments=["--enforce-eager"], environment="there").settings.tree
    elsewhere = built(base_urls=["http://a:1"], outage_seconds=60, api_key_variable="KEY").settings.tree
    assert [change.key for change in changes(has, elsewhere) if not change.allowed] == []
    longer = built(serve=True, max_completion_length=4096).settings.tree
    assert [change.key for change in changes(has, longer) if not change.allowed] == ["engine.max_completion_length"]


def test_the_environment_of_vllm_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment(tmp_path / "env", SERVING)
    settings = resolve(values={**WHOLE, "engine": {"name": "vllm", "serve": True, "environment": "env"}})
    with pytest.raises(ConfigError) as caught:  # the model is nowhere; the servers are fine
        refuse_problems(settings)
    assert not any("engine" in problem for problem in caught.value.problems)
    assert with_whole_paths(settings).tree["engine"]["environment"] == str(tmp_path / "env")


def test_a_key_that_is_not_set_is_told_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLICY_KEY", raising=False)
    elsewhere = built(base_urls=["http://a:1"], api_key_variable="POLICY_KEY")
    (problem,) = check_servers(elsewhere)
    assert problem.startswith("engine.api_key_variable: no environment variable POLICY_KEY is set here")
    monkeypatch.setenv("POLICY_KEY", "sesame")
    assert check_servers(elsewhere) == []


def test_weights_over_nccl_are_refused_where_the_learner_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (problem,) = check_servers(built(base_urls=["http://a:1"], weights="nccl"))
    assert problem.startswith('engine.weights = "nccl": the learner sends from its GPU')


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:8000", "expected a URL; write http://localhost:8000"),
        ("http://a:1/v1", "a server is named by its root, without /v1; write http://a:1"),
        ("http://a:1/v1/", "a server is named by its root, without /v1; write http://a:1"),
        ("ftp://a", "expected http:// or https:// and a host"),
        ("http:///x", "expected http:// or https:// and a host"),
    ],
)
def test_a_server_is_named_by_the_url_of_its_root(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(base_urls=[url])
    (problem,) = caught.value.problems
    assert problem.startswith(f"engine.base_urls.0 = '{url}': {told}")


def test_a_server_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'engine\.base_urls: "http://a:1" is listed twice'):
        built(base_urls=["http://a:1", "http://a:1/"])


def test_a_server_elsewhere_is_asked_whether_it_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        answers = threading.Thread(target=_say_ok, args=(listening,))
        answers.start()
        assert ask_servers(built(base_urls=[f"http://127.0.0.1:{port}"]))[0].startswith(
            f"http://127.0.0.1:{port} answers"
        )
        answers.join(10)
    (gone,) = ask_servers(built(base_urls=[f"http://127.0.0.1:{port}"], start_seconds=60))
    assert gone.startswith(f"warning: GET http://127.0.0.1:{port}/health: ClientConnectorError")
    assert gone.endswith("a run waits engine.start_seconds = 60 s for a server to answer")


def _say_ok(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
