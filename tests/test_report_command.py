"""`agrpo report`: where the page goes, and what is said of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.cli.commands.report import report
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError, StoreError
from agrpo.stages.recorder import record_once
from tests.database.synthetic import small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        folder = small_run(place / name)
        record_once(folder, Database(folder.database))
    return place


def test_one_run_has_its_page_in_its_folder(runs: Path, capsys: pytest.CaptureFixture[str]):
    report(["one"], runs_dir=str(runs))
    assert re.fullmatch(rf"{re.escape(str(runs))}/one/report\.html \(1\.\d MB\)\n", capsys.readouterr().out)
    assert (runs / "one" / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_several_runs_have_theirs_in_the_working_folder(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(runs)
    report(["one", "two"], runs_dir=".")
    assert capsys.readouterr().out.startswith(f"{runs}/report-compare.html (1.")
    assert "2 runs compared" in Path("report-compare.html").read_text("utf-8")


def test_a_page_is_written_where_it_is_told(runs: Path, capsys: pytest.CaptureFixture[str]):
    report([str(runs / "one")], out=runs / "pages" / "one.html")
    assert capsys.readouterr().out.startswith(f"{runs}/pages/one.html (1.")


def test_a_run_that_is_not_there_is_one_line(runs: Path):
    command = [sys.executable, "-m", "agrpo", "report", "one", "three", "--dir", "."]
    told = subprocess.run(command, capture_output=True, text=True, cwd=runs, check=False, timeout=120)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith('error: no run "three"')
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("place", [".", "run.toml/report.html"])
def test_a_place_that_cannot_be_written_is_said(runs: Path, tmp_path: Path, place: str):
    (tmp_path / "run.toml").write_text("[run]")
    with pytest.raises(StoreError, match=r"cannot be written: .*; name another file with --out"):
        report(["one"], out=tmp_path / place, runs_dir=str(runs))


def test_a_database_that_is_damaged_is_said_with_what_to_do(tmp_path: Path):
    folder = small_run(tmp_path / "run")
    record_once(folder, Database(folder.database))
    data = bytearray(folder.database.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    folder.database.write_bytes(data)
    with pytest.raises(DatabaseError, match="agrpo rebuild RUN"):
        report([folder.url])
