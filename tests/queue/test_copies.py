"""The temporary folders of processes that end well, are killed, or still live."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

MAKE_ONE = "from agrpo.queue.filesystems.copies import new_folder; print(new_folder(), flush=True);"


def process(parent: Path, then: str) -> subprocess.Popen[str]:
    """A process with a folder in `parent`, made by the time this returns."""
    command, environment = [sys.executable, "-c", MAKE_ONE + then], {**os.environ, "TMPDIR": str(parent)}
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert Path(started.stdout.readline().strip()).parent.parent == parent
    return started


def test_a_process_that_ends_leaves_nothing(tmp_path: Path):
    with process(tmp_path, "") as ended:
        assert ended.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_kept(tmp_path: Path):
    with process(tmp_path, "input()") as killed:
        killed.kill()
    (left,) = tmp_path.iterdir()
    with process(tmp_path, "input()") as living:
        (kept,) = set(tmp_path.iterdir()) - {left}
        two_hours_ago = time.time() - 7200
        for path in (left, *left.iterdir(), kept, *kept.iterdir()):
            os.utime(path, (two_hours_ago, two_hours_ago))
        with process(tmp_path, "") as next_one:
            next_one.wait(30)
        found = list(tmp_path.iterdir())
        living.communicate("done")
    assert found == [kept]
