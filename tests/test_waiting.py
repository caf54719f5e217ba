"""Waiting: every wait has a name and an end."""

from __future__ import annotations

import threading

import pytest

from agrpo.errors import DeadlineExceeded, Stopped
from agrpo.waiting import wait_for


def test_a_wait_returns_what_becomes_ready():
    answers = iter([None, None, 7])
    assert wait_for("an answer", lambda: next(answers), deadline_seconds=5, stop=threading.Event()) == 7


def test_a_wait_past_its_deadline_says_what_for():
    with pytest.raises(DeadlineExceeded, match=r"for scored group 3; the limit is 0 s \(stop.stall_seconds\)"):
        wait_for("scored group 3", lambda: None, deadline_seconds=0.01, stop=threading.Event())


def test_a_wait_ends_when_the_run_is_asked_to_stop():
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="waiting for the engine"):
        wait_for("the engine", lambda: None, deadline_seconds=5, stop=stop)
