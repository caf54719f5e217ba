"""A judge that hangs, crashes or takes everything costs its own completion's value and nothing else (K21)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agrpo.rewards.sandbox import RewardRunner
from tests.rewards.worlds import descendants, group_of, run, section_of, with_runner

GOOD = ["a", "bb", "ccc", "dddd", "bad", "ffffff", "ggggggg", "hhhhhhhh"]
BATCH_SECONDS = 10.0
"""In which a batch is judged: five times what each call may take, as in the case, where it is a second."""
WAYS = {
    "loop_in_python": "processor time|no answer within 2 s",
    "ignore_signals": "no answer within 2 s",
    "compute_in_c": "processor time|no answer within 2 s",
    "take_four_gigabytes": "ran out of memory: the limit is 536870912 bytes",
    "call_exit": r"called exit\(3\)",
    "end_at_once": "ended with exit status 3 before it answered",
    "fail": "KeyError: 'no such answer'",
    "crash": "killed by SIGSEGV",
}


def resident_bytes(pids: set[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") for pid in pids)


@pytest.mark.spec("K21", "A-207")
@pytest.mark.parametrize("way", WAYS)
def test_one_bad_completion_leaves_the_values_of_the_others(way: str) -> None:
    others = descendants(os.getpid())

    async def work(runner: RewardRunner) -> None:
        await runner.score(group_of("warm", way=way))
        template = descendants(os.getpid())
        before = resident_bytes(template | {os.getpid()})

        score = await runner.score(group_of(*GOOD, way=way))
        assert score.values == [1.0, 2.0, 3.0, 4.0, None, 6.0, 7.0, 8.0]
        assert [error is None for error in score.errors] == [text != "bad" for text in GOOD]
        assert any(reason in (score.errors[4] or "") for reason in WAYS[way].replace("\\", "").split("|"))

        seconds = [score.duration_seconds]
        if seconds[0] >= BATCH_SECONDS:  # others may have had the cores meanwhile
            seconds.append((await runner.score(group_of(*GOOD, way=way))).duration_seconds)
        assert min(seconds) < BATCH_SECONDS

        assert (await runner.score(group_of("x", "yy", way=way))).values == [1.0, 2.0]
        assert descendants(os.getpid()) == template
        assert resident_bytes(template | {os.getpid()}) - before < 64 * 2**20

    run(with_runner(section_of("misbehaves", timeout_seconds=2.0, memory_bytes=512 * 2**20), work))
    assert descendants(os.getpid()) <= others
