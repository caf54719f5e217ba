"""`agrpo diagnose`: what it prints, for whom, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agrpo.cli import main
from agrpo.database.queries import FILE_NAME
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import Done
from agrpo.stages.recorder import record_once
from tests.database.synthetic import add_attempt, add_group, add_plan, add_scores
from tests.instruments.made_points import SETTINGS, Measure, history, with_settings

HEALTHY: dict[str, Measure] = {"frac_zero_std_groups": 0.1, "completions/duplicate_frac": 0.01, "reward": 0.5}
CUT: dict[str, Measure] = {**HEALTHY, "completions/clipped_ratio": 0.3}


def recorded(place: Path, measures: dict[str, Measure], steps: int = 20, settings: dict[str, Any] = SETTINGS) -> Path:
    """The folder of a run that logged these measures, with its database."""
    tree = {**settings, "recorder": {"every_seconds": 0.05, "topk": False}}
    document = {"name": place.name, "settings": {"tree": tree, "origins": {}}, "config_digest": "c0ffee"}
    folder = RunFolder.create(str(place), document)
    add_attempt(folder, 0)
    for point in history(measures, steps):
        add_plan(folder, StepKey(0, point.step), [])
        folder.write_done(a_step(point.step, dict(point.metrics), point.num_prompts))
    record_once(folder, Database(folder.database))
    return place


def a_step(step: int, metrics: dict[str, float], num_prompts: int) -> Done:
    known: dict[str, Any] = {
        "digest": "d",
        "digests": {},
        "loss": 0.0,
        "grad_norm": 0.0,
        "samples": [],
        "num_tokens": 0,
    }
    return Done(
        attempt=0,
        step=step,
        metrics=metrics,
        num_prompts=num_prompts,
        publish=None,
        empty=True,
        started_at=float(step),
        finished_at=float(step + 1),
        **known,
    )


@pytest.fixture
def diagnose(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command in a terminal of 80 columns; what it printed."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["agrpo", "diagnose", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert ended.value.code == code, told.err
        return told.out + told.err

    return run


def test_a_healthy_run_says_why_in_two_sentences(diagnose: Callable[..., str], tmp_path: Path):
    run = recorded(tmp_path / "small", HEALTHY)
    assert diagnose(str(run), "--strict").splitlines() == [
        "small, steps 1 to 20",
        "",
        "good     Healthy: nothing to change",
        "         Only in 10 % of the groups all rollouts earn the same reward [A-357].",
        "         1.0 % of the rollouts repeat another of their group [A-362].",
    ]


def test_a_warning_comes_first_and_fails_scripts_that_ask_for_it(diagnose: Callable[..., str], tmp_path: Path):
    run = recorded(tmp_path / "small", CUT)
    told = diagnose(str(run)).splitlines()
    assert told[2] == "warning  Completions are cut before they end [agrpo/cut-completions]"
    assert max(map(len, told)) <= 80
    assert diagnose(str(run), "--strict", code=1).splitlines() == told


def test_programs_get_the_same_as_json(diagnose: Callable[..., str], tmp_path: Path):
    told = json.loads(diagnose(str(recorded(tmp_path / "small", CUT)), "--format", "json", "--window", "10"))
    assert (told["run"], told["first_step"], told["last_step"]) == ("small", 11, 20)
    assert [finding["rule"] for finding in told["findings"]] == ["agrpo/cut-completions", "A-357", "A-362"]
    assert told["findings"][0].keys() == {"rule", "severity", "title", "reading", "change"}


@pytest.mark.parametrize(("steps", "done"), [(0, "No step is done yet."), (9, "9 steps are done.")])
def test_a_young_run_is_told_when_to_ask_again(diagnose: Callable[..., str], tmp_path: Path, steps: int, done: str):
    told = diagnose(str(recorded(tmp_path / "small", HEALTHY, steps)), "--strict")
    assert f"{done} A reading needs 10" in " ".join(told.split())


def test_groups_that_fill_no_step_are_a_warning_before_the_first_step(diagnose: Callable[..., str], tmp_path: Path):
    run = recorded(tmp_path / "small", HEALTHY, 0, with_settings(step={"groups": 2}))
    folder = RunFolder.open(str(run))
    for ticket in range(10):
        add_group(folder, ticket)
        add_scores(folder, ticket, {"exact_match": [1.0, 1.0]})
    record_once(folder, Database(folder.database))
    told = " ".join(diagnose(str(run), "--strict", code=1).split())
    assert told.startswith("small, no finished step warning Nothing to train")
    assert "10 groups are scored and none of them can be trained" in told
    assert "Too early to tell" not in told


def test_a_run_that_nobody_recorded_cannot_be_read(diagnose: Callable[..., str], tmp_path: Path):
    run = recorded(tmp_path / "small", HEALTHY, 1)
    (run / FILE_NAME).unlink()
    assert "run.duckdb does not exist; the recorder makes it" in diagnose(str(run), code=1)


def test_the_help_says_what_each_option_means(diagnose: Callable[..., str]):
    told = diagnose("--help")
    for word in ("--window", "--format", "--strict", "Example", "docs/diagnosis.md"):
        assert word in told
