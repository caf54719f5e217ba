"""A generator over hundreds of rollouts with tools and environments: threads, open files and children stay as many."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from tests.environments import worlds
from tests.processes import until
from tests.rewards.worlds import descendants
from tests.stages.calling import allow, begin_calling
from tests.stages.playing import call_of
from tests.stages.walk import Walk

WARM, MORE = 25, 75
"""Groups of four: until the first count, and after it."""
IN_FLIGHT = 32
CHECKED = 4
"""Instances that are made before the run begins."""
LINES = [
    *(call_of("add", a=1, b=2), call_of("wait_a_moment", seconds=0.005), call_of("count"), call_of("divide", a=1, b=0))
    * 4,
    *(call_of("sleep", seconds=1.8), "done", "done"),
]
"""On a thread, on the loop, in the environment, one that raises, one that outlives its deadline, and an end."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the process holds at one moment."""

    threads: list[str]
    """Their names, but for the loop's own few that write to the disk: those are bounded, and begun as they are needed."""
    files: int
    children: int


def held() -> Held:
    names = [thread.name for thread in threading.enumerate()]
    return Held(
        threads=sorted(name for name in names if not name.startswith("asyncio_")),
        files=len(os.listdir("/proc/self/fd")),
        children=len(descendants(os.getpid())),
    )


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Iterator[RunFolder]:
    worlds.MADE.clear()
    yield begin_calling(
        tiny_model,
        tmp_path,
        LINES,
        asynchronous={"max_concurrent_rollouts": IN_FLIGHT},
        environments={"factory": "tests.environments.worlds:Counting"},
        stop={"stall_seconds": 300},
        tools={
            "functions": [f"tests.tools.functions:{name}" for name in ("add", "wait_a_moment", "divide", "sleep")],
            "max_tool_calling_iterations": 3,
            "timeout_seconds": 1.2,
        },
    )
    worlds.MADE.clear()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted as Linux lists them")
def test_hundreds_of_rollouts_leave_no_thread_file_or_process_behind(folder: RunFolder):
    work = Walk(folder)

    def held_after(groups: int) -> Held:
        allow(folder, groups)
        work.until(lambda: len(folder.groups.numbers()) == groups)
        until(lambda: not any(name.startswith("tool ") for name in held().threads), 10)
        return held()

    work.start("generator")
    warm = held_after(WARM)
    end = held_after(WARM + MORE)
    work.stop.set()
    work.join()
    assert end == warm
    rollouts = [
        rollout
        for ticket in folder.groups.numbers()
        for rollout in group_from_arrow(folder.groups.read(ticket)).rollouts
    ]
    assert len(rollouts) == 4 * (WARM + MORE)
    called = {(call.name, call.failure) for rollout in rollouts for call in rollout.tool_calls}
    assert {
        ("add", None),
        ("wait_a_moment", None),
        ("count", None),
        ("divide", "raised"),
        ("sleep", "timeout"),
    } <= called
    late = sum(call.failure == "timeout" for rollout in rollouts for call in rollout.tool_calls if call.name == "count")
    assert len(worlds.MADE) <= CHECKED + IN_FLIGHT + late, "an instance is used again where nothing in it hangs"
