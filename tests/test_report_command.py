"""`agrpo report`: where the page goes, and what is said of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.database.writer import Database
from agrpo.stages.recorder import record_once
from tests.database.synthetic import small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        folder = small_run(place / name)
        record_once(folder, Database(folder.database))
    return place


def report(runs: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agrpo", "report", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=runs, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def test_one_run_has_its_page_in_its_folder(runs: Path):
    told = report(runs, "one", "--dir", ".").stdout
    assert re.fullmatch(rf"{re.escape(str(runs))}/one/report\.html \(1\.\d MB\)\n", told)
    assert (runs / "one" / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_several_runs_have_theirs_in_the_working_folder_or_where_they_are_told(runs: Path):
    assert report(runs, "one", "two", "--dir", ".").stdout.startswith(f"{runs}/report-compare.html (1.")
    assert report(runs, "one", "--dir", ".", "--out", "pages/one.html").stdout.startswith(f"{runs}/pages/one.html (1.")


def test_a_run_that_is_not_there_is_one_line(runs: Path):
    told = report(runs, "one", "three", "--dir", ".", code=1).stderr
    assert told.startswith('error: RunNotFound: no run "three"')
    assert "Traceback" not in told
