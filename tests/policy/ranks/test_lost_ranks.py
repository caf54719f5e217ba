from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from agrpo.errors import DeadlineExceeded, LearnerRankLost
from agrpo.policy import model
from agrpo.policy.trainee import Origin, begin
from agrpo.stages.ranks import Recruiter
from agrpo.stages.ranks import recruiter_of as recruiter_of_run
from agrpo.stages.reaper import descendants
from agrpo.stages.report import may_pass
from tests.policy.ranks.conftest import numbers_of_step, recruiter_of, rows_of_step
from tests.stages.groups import a_config

MakeOrigin = Callable[..., Origin]


def ranks() -> list[int]:
    """Processes of all further ranks."""
    return sorted(pid for pid in descendants({os.getpid()}) if b"\0rank\0" in command(pid))


def rank_1() -> int:
    (pid,) = ranks()
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


def test_a_rank_that_is_gone_while_the_policy_is_loaded_is_named(
    origin_of: MakeOrigin, monkeypatch: pytest.MonkeyPatch
):
    verify, killed = model.verify_packing, list[int]()

    def verify_with_one_less(loaded: PreTrainedModel) -> None:
        killed.append(rank_1())
        os.kill(killed[0], signal.SIGKILL)
        verify(loaded)

    monkeypatch.setattr(model, "verify_packing", verify_with_one_less)
    with recruiter_of() as recruiter:
        group = recruiter.form(2)
        with pytest.raises(LearnerRankLost, match=r"rank 1 of 2 .* was killed by SIGKILL") as lost:
            begin(origin_of(), group, recruiter)
    assert lost.value.passing and is_gone(killed[0])


def test_a_rank_is_given_up_before_the_learner_is_taken_to_stand_still():
    for stall in (4.0, 900.0):
        config = a_config(supervision={"stall_seconds": stall})
        made = recruiter_of_run(config, threading.Event())
        assert made.silent_seconds < made.deadline_seconds <= 0.75 * stall


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


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("[unbound_buffer.cc:82] Timed out waiting 6000ms for recv operation to complete", DeadlineExceeded),
        ("Application timeout caused pair closure", DeadlineExceeded),
        ("[pair.cc:547] Connection closed by peer [127.0.0.1]:4711", LearnerRankLost),
        ("The size of tensor a (3) must match the size of tensor b (4)", type(None)),
    ],
)
def test_what_torch_says_of_another_rank_is_told_from_a_slip(recruiter: Recruiter, said: str, raised: type):
    absence = recruiter.form(2).absence(RuntimeError(said))
    assert isinstance(absence, raised)
    assert absence is None or (said in str(absence) and may_pass(absence))
