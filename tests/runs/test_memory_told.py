"""`agrpo check` tells the plan of memory before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.cli.commands.check import check
from tests.runs.made import a_machine, a_model


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}))
    file = tmp_path / "run.toml"
    file.write_text(
        f'model = {{ path = "{a_model(tmp_path / "model")}" }}\n'
        f'run = {{ dir = "{tmp_path / "runs"}" }}\n'
        f'prompts = {{ name = "files", path = "{tmp_path / "prompts.jsonl"}" }}\n'
        'rewards = [{ name = "exact_match" }]\n'
        "stop = { max_steps = 1 }\n"
    )
    return file


def test_a_check_shows_the_table(run_file: Path, capsys: pytest.CaptureFixture[str]):
    check(run_file)
    told = capsys.readouterr()
    shown = (told.out + told.err).splitlines()
    assert [line for line in shown if line.startswith("memory of this machine: ")]
    assert "    560 MiB  learner    imports" in shown


def test_a_check_warns_where_it_may_not_fit(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("agrpo.runs.memory.machine_here", lambda: a_machine(8, free=1))
    check(run_file)
    told = capsys.readouterr()
    assert "at its fullest, where 1.0 GiB of 8.0 GiB are free: " in told.out + told.err
    assert not (run_file.parent / "runs").exists()
