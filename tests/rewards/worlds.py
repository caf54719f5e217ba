"""Groups to judge, and what lives in the process table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from agrpo.config import RewardSection
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord
from agrpo.records.score import Score
from agrpo.rewards.sandbox import RewardRunner

HANG_SECONDS = 60.0
"""A test that takes longer hangs."""


def group_of(*answers: str, ticket: int = 0, **facts: Any) -> RolloutGroup:
    prompt = Prompt(id="p", messages=[{"role": "user", "content": "2 + 2 ="}], facts=facts)
    rollouts = [
        Rollout(
            completion=[{"role": "assistant", "content": text}],
            completion_ids=list(range(len(text))),
            turns=[TurnRecord(prompt_ids=[1], output_ids=list(range(len(text))))],
            index=index,
        )
        for index, text in enumerate(answers)
    ]
    return RolloutGroup(ticket=ticket, prompt=prompt, rollouts=rollouts, model_version=0)


def section_of(judge: str, **settings: Any) -> RewardSection:
    return RewardSection(name=f"tests.rewards.judges:{judge}", **settings)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, HANG_SECONDS))


async def with_runner(
    section: RewardSection, work: Callable[[RewardRunner], Any], *, reproducible: bool = False
) -> Any:
    runner = RewardRunner(section, reproducible=reproducible)
    try:
        return await work(runner)
    finally:
        await runner.close()


def score(section: RewardSection, *groups: RolloutGroup, reproducible: bool = False) -> list[Score]:
    """The scores of the groups, one after the other, by one runner."""

    async def work(runner: RewardRunner) -> list[Score]:
        return [await runner.score(group) for group in groups]

    return run(with_runner(section, work, reproducible=reproducible))


def lives(pid: int) -> bool:
    """Whether the process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Running processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found: set[int] = {pid}
    while more := {child for child, parent in parents.items() if parent in found and child not in found}:
        found |= more
    return {child for child in found - {pid} if lives(child)}


def noted(note: Path) -> list[int]:
    """The processes a judge wrote down."""
    return [int(line) for line in note.read_text().split()]


def all_ended(pids: list[int] | set[int], seconds: float = 5.0) -> bool:
    """Wait for processes to end."""
    deadline = time.monotonic() + seconds
    while any(lives(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
