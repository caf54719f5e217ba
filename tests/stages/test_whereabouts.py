"""Where a stage that stands still is: what the fault handler's words are taken to mean, and how long they are waited for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agrpo.stages.process import Supervisor
from agrpo.stages.whereabouts import LONGEST_SECONDS, asked, told
from tests.processes import until

EXAMPLE = "tests.stages.stage_examples"

ON_A_THREAD = [
    "Thread 0x00007f1 (most recent call first):",
    '  File "/site/http/client.py", line 12 in read',
    '  File "/mine/tools.py", line 34 in look_up',
    '  File "/agrpo/tools/caller.py", line 141 in work',
    '  File "/lib/threading.py", line 982 in run',
]
IN_THE_LOOP = [
    '  File "/lib/selectors.py", line 468 in select',
    '  File "/lib/asyncio/base_events.py", line 1884 in _run_once',
]
OUTSIDE = [
    '  File "/agrpo/records/arrow.py", line 56 in group_to_arrow',
    '  File "/lib/asyncio/events.py", line 80 in _run',
]
IN_A_TOOL = [
    '  File "/site/http/client.py", line 12 in read',
    '  File "/mine/tools.py", line 9 in block',
    '  File "/agrpo/tools/caller.py", line 200 in __await__',
    '  File "/lib/asyncio/events.py", line 80 in _run',
]
MAIN = "Current thread 0x00007f0 (most recent call first):"
CALLS = "called by the policy and not come back: look_up (tools.py:34) 2 times"


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ([MAIN, *IN_THE_LOOP], CALLS),
        ([MAIN, *OUTSIDE], f"its main thread is in group_to_arrow (arrow.py:56); {CALLS}"),
        ([MAIN, *IN_A_TOOL], f"its main thread is in block (tools.py:9), called by the policy; {CALLS}"),
        (["..."], f"{CALLS}; its main thread is not known, for not all stacks were told (2 were)"),
    ],
    ids=["in the loop", "outside", "in a tool", "after the hundredth"],
)
def test_calls_are_not_accused_in_the_place_of_a_main_thread_outside_its_loop(main: list[str], expected: str):
    assert told([*ON_A_THREAD, "step 3 is done", *ON_A_THREAD, *main, "..., and so on"]) == expected


def test_without_calls_the_main_thread_is_told_wherever_it_is():
    assert told([MAIN, *IN_THE_LOOP]) == "its main thread is in select (selectors.py:468)"
    assert told([MAIN, *OUTSIDE], whole=False) == (
        "its main thread is not known, for not all stacks were told (1 were)"
    )
    assert told(["nothing of this kind"]) is None


def test_a_stage_that_goes_on_printing_is_not_listened_to_for_ever(tmp_path: Path):
    with Supervisor(str(tmp_path), tmp_path / "logs", grace_seconds=1.0) as supervisor:
        stage = supervisor.start(EXAMPLE, {"EXAMPLE": "chatter"})
        until(lambda: len(stage.output.last_lines()) > 3, 30)
        began = time.monotonic()
        where = asked(stage)
        assert time.monotonic() - began < LONGEST_SECONDS + 1
        assert where is not None and where.startswith("its main thread is in chatter (stage_examples.py:")
        supervisor.stop(stage)
