"""What is said of a run that is followed and stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.cli.following import saying_where_it_stops
from agrpo.errors import Stopped
from tests.database.synthetic import new_run
from tests.instruments.watched import going_on

FOLLOWING = """
import sys, time
from agrpo.cli.following import saying_where_it_stops
with saying_where_it_stops(sys.argv[1]):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_the_run_with_the_step_it_stopped_after(tmp_path: Path, number: int, code: int):
    folder = going_on(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWING, folder.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(number)
        assert program.stdout.read() == f"stopped as asked after step 1; agrpo resume {folder.url} goes on\n"
        assert program.wait(30) == code


def test_a_run_that_prefect_stops_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = new_run(tmp_path / "run")
    with pytest.raises(Stopped), saying_where_it_stops(folder.url):
        raise Stopped("cancelled")
    assert capsys.readouterr().out == f"stopped as asked before its first step; agrpo resume {folder.url} goes on\n"


def test_a_run_that_ends_by_itself_is_not_said_to_be_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    term = signal.getsignal(signal.SIGTERM)
    with saying_where_it_stops(new_run(tmp_path / "run").url):
        pass
    assert capsys.readouterr().out == ""
    assert signal.getsignal(signal.SIGTERM) is term
