"""Tools, environments and rewards that block, fork, hang or share: each is named, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import SupervisionSection
from agrpo.errors import DeadlineExceeded, StageFailed
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow, group_to_arrow, scored_from_arrow
from agrpo.records.group import RolloutGroup
from agrpo.stages.group_making import GroupMaker
from agrpo.stages.process import Supervisor
from agrpo.stages.supervision import Supervision
from agrpo.stages.watchdog import Watchdog
from tests.processes import until
from tests.rewards.test_never_returns import GOOD
from tests.rewards.worlds import all_ended, group_of, lives, noted
from tests.stages.calling import allow, begin_calling
from tests.stages.playing import call_of
from tests.stages.walk import Walk

HOSTILE = "tests.tools.hostile:"
Begin = Callable[..., RunFolder]


@pytest.fixture
def begin(tiny_model: Path, tmp_path: Path) -> Begin:
    def begun(*lines: str, **tables: Any) -> RunFolder:
        return begin_calling(tiny_model, tmp_path, lines, **tables)

    return begun


def make(folder: RunFolder, groups: int = 1) -> None:
    """So many groups, by a generator in a thread."""
    allow(folder, groups)
    work = Walk(folder).start("generator")
    work.until(lambda: len(folder.groups.numbers()) == groups)
    work.stop.set()
    work.join()


def test_an_environment_that_shares_its_state_between_rollouts_is_named_with_what_it_shares(
    begin: Begin, caplog: pytest.LogCaptureFixture
):
    make(begin("done", environments={"factory": "tests.environments.worlds:Sharing"}))
    told = [message for message in caplog.messages if message.startswith("instances of Sharing share ")]
    assert [message.split(":")[0].removeprefix("instances of Sharing share ") for message in told] == ["seen", "past"]


@pytest.mark.parametrize("way", ["stopped", "finished"])
def test_what_a_hanging_tool_has_started_ends_with_the_stage(begin: Begin, tmp_path: Path, way: str):
    note = tmp_path / "note"
    functions = [f"{HOSTILE}fork_and_hang"]
    folder = begin(call_of("fork_and_hang", note=str(note)), tools={"functions": functions, "timeout_seconds": 50.0})
    allow(folder, 1)
    with Supervisor(folder.url, tmp_path / "logs", grace_seconds=5.0) as supervisor:
        stage = supervisor.start("generator")
        until(lambda: (note.exists() and note.read_text().endswith("\n")) or stage.ended, 60)
        child = noted(note)[0]
        assert lives(child), "the tool has started it"
        if way == "stopped":
            supervisor.stop(stage)
        else:
            allow(folder, 1, finished=True)
            supervisor.wait(stage)
        try:
            assert all_ended({child})
        finally:
            os.kill(child, signal.SIGKILL) if lives(child) else None


def test_a_reward_that_holds_the_interpreter_in_c_is_named_by_the_scorer_and_costs_one_value(begin: Begin):
    reward = {"name": "tests.rewards.judges:misbehaves", "timeout_seconds": 1.0}
    folder = begin("done", rewards=[reward], columns={"way": "compute_in_c"})
    folder.groups.publish(0, group_to_arrow(_sampled(group_of(*GOOD, way="compute_in_c"))))
    work = Walk(folder).start("scorer")
    work.until(lambda: folder.scored.exists(0))
    work.stop.set()
    work.join()
    (score,) = scored_from_arrow(folder.scored.demand(0)).scores
    assert score.values == [1.0, 2.0, 3.0, 4.0, None, 6.0, 7.0, 8.0]
    assert re.search("processor time|no answer within 1 s", score.errors[4] or "")


@pytest.mark.slow
def test_a_tool_that_holds_the_interpreter_is_named_by_whoever_ends_its_stage(begin: Begin, tmp_path: Path):
    functions = [f"{HOSTILE}hold_the_interpreter"]
    folder = begin(call_of("hold_the_interpreter"), tools={"functions": functions, "timeout_seconds": 3.0})
    allow(folder, 1)
    rule = SupervisionSection(restarts=0)
    told: list[str] = []
    with (
        Supervisor(folder.url, tmp_path / "logs", grace_seconds=1.0) as supervisor,
        Watchdog(folder.beats, stall_seconds=20.0, idle_seconds=60.0) as watchdog,
        pytest.raises(
            StageFailed, match=r"stage generator said nothing for \d+ s, more than supervision.stall_seconds"
        ),
    ):
        supervision = Supervision(
            supervisor,
            rule,
            watchdog=watchdog,
            on_event=lambda kind, facts: told.append(f"{kind}: {facts.get('reason')}"),
        )
        supervision.run("generator", threading.Event())
    (stalled,) = [line for line in told if line.startswith("stage_stalled")]
    assert "called by the policy and not come back: hold_the_interpreter (hostile.py:" in stalled


def test_an_async_tool_that_blocks_the_loop_is_named_with_its_seconds(begin: Begin, caplog: pytest.LogCaptureFixture):
    functions = [f"{HOSTILE}block_the_loop", "tests.tools.functions:wait_a_moment"]
    folder = begin(
        call_of("block_the_loop", seconds=1.2),
        call_of("wait_a_moment", seconds=1.2),
        tools={"functions": functions, "max_tool_calling_iterations": 1, "timeout_seconds": 10.0},
    )
    make(folder)
    (told,) = [message for message in caplog.messages if "held the loop" in message]
    assert told.startswith("tool block_the_loop held the loop for 1.")
    group = group_from_arrow(folder.groups.demand(0))
    assert {call.name for rollout in group.rollouts for call in rollout.tool_calls} == {
        "block_the_loop",
        "wait_a_moment",
    }


def test_a_run_that_waits_too_long_for_calls_says_which(begin: Begin, caplog: pytest.LogCaptureFixture):
    line = call_of("sleep", seconds=2) * 4
    tools = {"functions": ["tests.tools.functions:sleep"], "timeout_seconds": 2.8, "max_calls_per_turn": 4}
    folder = begin(line, tools=tools, stop={"stall_seconds": 3.0})
    assert any("4 calls of timeout_seconds = 2.8 s each, 11.2 s in all" in message for message in caplog.messages)
    allow(folder, 1)
    with pytest.raises(
        DeadlineExceeded, match=r"for tool sleep, called \d s ago, to complete ticket 0; the limit is 3 s"
    ):
        Walk(folder).start("generator").join()


def test_a_group_that_waits_for_a_probe_says_which():
    async def waits() -> tuple[str, str]:
        maker = _maker()
        proving = asyncio.create_task(maker._prove(3, {1, 2}))  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0)
        first = maker.waits_for(3)
        maker.proved |= {1}
        second = maker.waits_for(3)
        maker.proved |= {2}
        await proving
        return first, second

    assert asyncio.run(waits()) == (
        "the probe of version 1, which sampled it,",
        "the probe of version 2, which sampled it,",
    )


def _sampled(group: RolloutGroup) -> RolloutGroup:
    """With the log-probs that scored groups have."""
    turns = [
        [replace(turn, output_log_probs=[-1.0] * len(turn.output_ids)) for turn in rollout.turns]
        for rollout in group.rollouts
    ]
    rollouts = [replace(rollout, turns=own) for rollout, own in zip(group.rollouts, turns, strict=True)]
    return replace(group, rollouts=rollouts)


def _maker() -> GroupMaker:
    """One that is never asked to make a group."""
    unused: Any = None
    return GroupMaker(unused, "generator", order=unused, hooks=unused, load=unused, events=unused)
