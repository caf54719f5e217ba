"""Ranks that fail on their way into the group, and those of somebody else's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agrpo.errors import LearnerRankLost
from tests.policy.ranks.conftest import recruiter_of
from tests.policy.ranks.test_lost_ranks import rank_1

DEADLINE_SECONDS = 240.0
FAILS = """
import os
if os.environ.get("RANK") == "1":
    import torch.distributed as dist
    def fail(*given, **settings):
        raise RuntimeError("the device is busy")
    dist.{call} = fail
"""
"""What every interpreter of rank 1 reads before anything else."""


@pytest.mark.parametrize("call", ["init_process_group", pytest.param("new_group", marks=pytest.mark.slow)])
def test_a_rank_that_fails_while_it_joins_is_named_at_once_in_its_words(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sitecustomize.py").write_text(FAILS.format(call=call))
    monkeypatch.syspath_prepend(tmp_path)
    # A group that never came about is counted by torch all the same.
    monkeypatch.setattr("torch.distributed.distributed_c10d._group_count", 0)
    began = time.monotonic()
    with (
        recruiter_of(deadline_seconds=DEADLINE_SECONDS) as recruiter,
        pytest.raises(LearnerRankLost, match=r"rank 1 of 2 .* exit code 1: RuntimeError: the device is busy") as lost,
    ):
        recruiter.form(2)
    assert time.monotonic() - began < DEADLINE_SECONDS / 2
    assert not lost.value.passing


def test_a_torchrun_around_the_run_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    around = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "theirs", "MASTER_PORT": "1", "RANK": "3"}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    with recruiter_of() as recruiter:
        group = recruiter.form(2)
        environment = Path(f"/proc/{rank_1()}/environ").read_bytes().split(b"\0")
    assert (group.rank, group.size) == (0, 2)
    assert b"RANK=1" in environment
    assert not [entry for entry in environment if entry.startswith(b"TORCHELASTIC_")]
    assert os.environ["RANK"] == "3"
