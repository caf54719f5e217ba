"""Commands tell the plan of memory before anything is started, and refuse a run that cannot fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.cli.commands import resume, train
from agrpo.cli.commands.check import check
from agrpo.config import resolve
from agrpo.errors import ConfigError
from agrpo.runs import prepare
from agrpo.runs.memory import Machine
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


def on_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every plan be made for that machine, and have nothing started."""
    for module in ("agrpo.runs.memory", "agrpo.runs.beginning", "agrpo.runs.identity"):
        monkeypatch.setattr(f"{module}.machine_here", lambda: machine)
    for module in ("train", "resume"):
        monkeypatch.setattr(f"agrpo.cli.commands.{module}.follow", lambda url, plain: None)
        monkeypatch.setattr(f"agrpo.cli.commands.{module}.say_done", lambda url: None)
    monkeypatch.setattr("agrpo.cli.commands.train.ensure_prefect", lambda: None)


def test_a_run_that_begins_is_told_every_place_and_what_is_not_counted(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "agrpo.runs.memory.plan.read_shape", lambda model: None
    )  # as of a model that a hub has yet to send
    on_machine(a_machine(64, gpus=(24.0,)), monkeypatch)
    train.train(run_file, folder=str(run_file.parent / "run"))
    told = capsys.readouterr()
    shown = [line for line in (told.out + told.err).splitlines() if line.startswith("memory")]
    assert [line.partition(":")[0] for line in shown] == [
        "memory of this machine",
        "memory of the learner's GPU",
        "memory",
    ]
    assert shown[2].startswith("memory: not counted: the weights of ")


def test_a_run_is_planned_again_where_it_goes_on(
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    folder = prepare(resolve(run_file), folder=str(run_file.parent / "run"))
    on_machine(a_machine(0.5), monkeypatch)
    with pytest.raises(ConfigError, match=r"memory: this run takes at least .* of this machine, which has 512 MiB"):
        resume.resume(folder.url)
    on_machine(a_machine(8, free=1), monkeypatch)
    resume.resume(folder.url)
    told = capsys.readouterr()
    assert "memory of this machine: " in told.out + told.err
    assert "at its fullest, where 1.0 GiB of 8.0 GiB are free: " in caplog.text
