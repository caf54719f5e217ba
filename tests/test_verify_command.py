"""`agrpo verify` and `agrpo rebuild` as they are called: tables, lines, and the code they end with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.queue.run_folder import RunFolder
from tests.audit.finished import copied, finish, sql


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finish(tiny_model, tmp_path_factory.mktemp("verify_command"), name="small")


def agrpo(*arguments: str, code: int = 0) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "agrpo", *arguments], capture_output=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode().splitlines()


def test_a_sound_run_ends_with_zero_and_a_table(finished: RunFolder):
    told = agrpo("verify", "small", "--dir", str(Path(finished.url).parent))
    assert any("tickets" in line and "trained 8" in line for line in told)
    assert told[-1] == f"balances: {finished.url}"


def test_each_finding_is_a_line_and_the_end_is_one(finished: RunFolder, tmp_path: Path):
    folder = copied(finished, tmp_path / "run")
    folder.filesystem.delete("steps/000000/00000002.done.json")
    sql(folder, "DELETE FROM turns WHERE ticket = 3")
    told = agrpo("verify", folder.url, code=1)
    assert "step 2: steps 1 to 4 are done; expected its done record, found none" in told
    assert any(
        line.startswith("database, table turns, groups 3: expected 4 rows, found 0, without ticket 3, rollout_index 0")
        for line in told
    )
    assert told[-1].startswith("does not balance: ")


def test_a_rebuild_says_what_differed_and_a_check_ends_with_one(finished: RunFolder, tmp_path: Path):
    folder = copied(finished, tmp_path / "run")
    sql(folder, "DELETE FROM turns WHERE ticket = 3")
    told = agrpo("rebuild", folder.url, "--check", code=1)
    assert any("turns" in line and "32" in line for line in told)
    assert told[-1].endswith("tables differ")
    assert agrpo("rebuild", folder.url)[-1].startswith(f"{folder.database} is made again from ")
    assert agrpo("rebuild", folder.url, "--check")[0].startswith("identical: ")
