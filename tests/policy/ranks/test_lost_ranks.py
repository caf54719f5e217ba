from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from agrpo.errors import LearnerRankLost
from agrpo.policy.trainee import Origin, begin
from agrpo.stages.ranks import Recruiter
from agrpo.stages.reaper import descendants
from tests.policy.ranks.conftest import numbers_of_step, recruiter_of, rows_of_step

MakeOrigin = Callable[..., Origin]


def rank_1() -> int:
    (pid,) = (pid for pid in descendants({os.getpid()}) if b"\0rank\0" in command(pid))
    return pid


def command(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def is_gone(pid: int) -> bool:
    """Not there, or dead and not yet reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("blow", "told"),
    [
        (signal.SIGKILL, r"was killed by SIGKILL"),
        pytest.param(signal.SIGSTOP, r"said nothing for \d+ s: it is stopped", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_gone_or_silent_is_named_amid_a_step_and_leaves_nothing(
    origin_of: MakeOrigin, blow: signal.Signals, told: str
):
    with recruiter_of(silent_seconds=8.0) as recruiter:
        trainee = begin(origin_of(), recruiter.form(2), recruiter)
        pid = rank_1()
        os.kill(pid, blow)
        with pytest.raises(LearnerRankLost, match=rf"rank 1 of 2 of the learner \(process {pid}\) {told}") as lost:
            trainee.update(rows_of_step(0), numbers_of_step(0), lambda: None)
        assert lost.value.passing
    assert is_gone(pid)


@pytest.mark.slow
def test_an_error_of_a_rank_is_told_in_its_words(origin_of: MakeOrigin):
    with recruiter_of() as recruiter:
        trainee = begin(origin_of(), recruiter.form(2), recruiter)
        rows = rows_of_step(0)
        rows[1].tokens[0] = 10**6  # of the second rank alone
        with pytest.raises(LearnerRankLost, match="ended with exit code 1: IndexError") as lost:
            trainee.update(rows, numbers_of_step(0), lambda: None)
        assert not lost.value.passing


@pytest.mark.slow
def test_an_idle_learner_hears_of_it_when_it_looks(origin_of: MakeOrigin):
    with recruiter_of() as recruiter:
        trainee = begin(origin_of(), recruiter.form(2), recruiter)
        trainee.check()
        os.kill(rank_1(), signal.SIGKILL)
        deadline = time.monotonic() + 30
        with pytest.raises(LearnerRankLost, match="was killed by SIGKILL"):
            while time.monotonic() < deadline:
                trainee.check()
                time.sleep(0.05)


def test_ranks_that_are_not_needed_any_more_end(recruiter: Recruiter):
    recruiter.form(2)
    pid = rank_1()
    assert recruiter.form(1).size == 1
    assert is_gone(pid)
