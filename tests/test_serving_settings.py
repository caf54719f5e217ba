"""Settings of servers that contradict one another, or what is installed, are refused by name before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.cli.commands.check import check
from agrpo.config import RunConfig, resolve
from agrpo.config.amendments import changes
from agrpo.errors import ConfigError
from agrpo.runs.beginning import refuse_problems, with_whole_paths
from agrpo.runs.serving import check_servers
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
