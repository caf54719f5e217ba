"""The two ways to call a reward: in a child process that may be killed, or awaited on the scorer's own loop."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from typing import TYPE_CHECKING, Protocol

from agrpo.coroutines import HELD_SECONDS, Timed, is_being_cancelled
from agrpo.errors import NoteRefused, RewardError
from agrpo.records.group import RolloutGroup
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards import AsyncReward, Call, Noting, Resident, awaits, load_reward, resident_of
from agrpo.rewards.calling import Notes
from agrpo.rewards.sandbox.frames import Answer
from agrpo.rewards.sandbox.limits import Limits
from agrpo.rewards.sandbox.process import TEMPLATE, Housing, ProcessDied, RewardProcess
from agrpo.rewards.sandbox.verdicts import CallFailed, Judged, Verdict, reason_of, verdicts_of

if TYPE_CHECKING:
    from agrpo.config import RewardSection

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0


class Calls(Protocol):
    """A loaded reward."""

    whole_group: bool

    async def judge(self, group: RolloutGroup, state: TrainerState) -> Judged:
        """One call. Raises `CallFailed`, or `RewardError` where the run cannot go on."""
        ...

    async def close(self) -> None:
        """End everything that was started."""
        ...


async def open_calls(section: RewardSection, limits: Limits, gpus: str | None) -> Calls:
    """Load the reward where it belongs. A sync reward is never imported by this process. Raises `RewardError`.

    `gpus`: as for `Housing`, of a reward that stays loaded on a GPU.
    """
    resident = resident_of(section)
    if resident is not None:
        process = RewardProcess(section, limits, housing_of(resident, gpus))
        return ProcessCalls(await process.start(), num_at_once=1)
    template = await RewardProcess(section, limits, TEMPLATE).start()
    if not template.loaded.is_async:
        return ProcessCalls(template, num_at_once=_num_cores())
    await template.close()
    reward = await asyncio.to_thread(load_reward, section)
    assert awaits(reward), f"{section.name} is async in one process and not in another"
    return AwaitedCalls(section, limits, reward)


def housing_of(resident: Resident, gpus: str | None) -> Housing:
    """The process of a reward that stays loaded. `gpus`: what it sees where it asks for one."""
    return Housing(
        module="agrpo.rewards.sandbox.resident",
        load_seconds=resident.load_seconds,
        load_setting="load_seconds",
        watches_calls=False,
        gpus=gpus if resident.on_gpu else "",
    )


class ProcessCalls:
    """Calls of a sync reward, in children of its process or in that process itself."""

    def __init__(self, process: RewardProcess, *, num_at_once: int) -> None:
        self.whole_group = process.loaded.whole_group
        self._process = process
        self._restarting = asyncio.Lock()
        self._places = asyncio.Semaphore(num_at_once)
        self._closed = False

    async def judge(self, group: RolloutGroup, state: TrainerState) -> Judged:
        """Have it judge. A process that dies is restarted, and the call made once more."""
        payload = pickle.dumps((group, state), protocol=pickle.HIGHEST_PROTOCOL)
        async with self._places:
            answer = await self._ask(payload)
        if answer.failure is None and len(answer.values) == len(answer.errors) == len(group.rollouts):
            verdicts = [Verdict(value=v, error=e) for v, e in zip(answer.values, answer.errors, strict=True)]
            return Judged(verdicts=verdicts, notes=_notes_in(answer))
        failure = answer.failure or f"it answered for {len(answer.values)} of {len(group.rollouts)} completions"
        if answer.overdue:
            raise _overdue(self._process.section, self._process.limits, group)
        raise CallFailed(failure)

    async def close(self) -> None:
        """End the process."""
        self._closed = True
        async with self._restarting:
            await self._process.close()

    async def _ask(self, payload: bytes) -> Answer:
        process = self._process
        try:
            return await process.ask(payload)
        except ProcessDied as death:
            logger.warning("%s: %s; starting it again", process.section.name, death)
        try:
            return await (await self._restarted(process)).ask(payload)
        except ProcessDied as death:
            return Answer(failure=f"{death}, twice in this call")

    async def _restarted(self, dead: RewardProcess) -> RewardProcess:
        """A living process; of several calls that saw one die, the first starts the next."""
        async with self._restarting:
            if self._closed:
                raise RewardError(f'reward "{dead.section.name}" was closed during a call')
            if self._process is dead:
                await dead.close()
                self._process = await RewardProcess(dead.section, dead.limits, dead.housing).start()
            return self._process


class AwaitedCalls:
    """Calls of an async reward. It must not block: nothing can interrupt it on this process's loop.

    One that blocks longer than its limit has failed all the same, once it lets go.
    """

    def __init__(self, section: RewardSection, limits: Limits, reward: AsyncReward) -> None:
        self.whole_group = reward.whole_group
        self._section = section
        self._limits = limits
        self._reward = reward
        self._tasks: set[asyncio.Task[Judged]] = set()
        self._told_seconds = 0.0
        """The longest that it held the loop, as far as that was told."""

    async def judge(self, group: RolloutGroup, state: TrainerState) -> Judged:
        """Await the reward, at most as long as the limit."""
        task = asyncio.create_task(self._judged(group, Call(len(group.rollouts), state)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            # Not `asyncio.timeout`: it would wait for a reward that swallows its cancellation.
            await asyncio.wait({task}, timeout=self._limits.wall_seconds)
            if task.done():
                return task.result()
        finally:
            task.cancel()
        raise _overdue(self._section, self._limits, group)

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_SECONDS)

    async def _judged(self, group: RolloutGroup, call: Call) -> Judged:
        held_seconds = 0.0

        def hear(seconds: float) -> None:
            nonlocal held_seconds
            held_seconds = max(held_seconds, seconds)
            self._tell_held(seconds)

        try:
            verdicts = verdicts_of(await Timed(self._answer(group, call), hear), len(group.rollouts))
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise CallFailed(reason_of(error)) from error
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two would end the loop, and the scorer
            raise CallFailed(reason_of(error)) from error
        if held_seconds > self._limits.wall_seconds:
            raise _overdue(self._section, self._limits, group, held_seconds)
        return Judged(verdicts=verdicts, notes=call.notes)

    async def _answer(self, group: RolloutGroup, call: Call) -> object:
        reward = self._reward
        return await (reward.judge_and_note(group, call) if isinstance(reward, Noting) else reward(group))

    def _tell_held(self, seconds: float) -> None:
        """The first time, and again where it is twice as long."""
        if seconds < max(HELD_SECONDS, 2 * self._told_seconds):
            return
        self._told_seconds = seconds
        logger.warning(
            "reward %s held the scorer's loop for %.1f s: every other reward stood still meanwhile, and no limit can end such a "
            "call. Await in it what takes time, or write it with def, so that it runs in a process of its own",
            *(self._section.name, seconds),
        )


def _notes_in(answer: Answer) -> Notes:
    """A child's notes, looked at again: what it writes is the reward's to forge. Raises `CallFailed`."""
    call = Call(len(answer.values))
    try:
        for column, values in answer.extras.items():
            call.log_extra(column, values)
        for name, value in answer.metrics.items():
            call.log_metric(name, value)
    except (NoteRefused, AttributeError) as error:
        raise CallFailed(reason_of(error)) from error
    return call.notes


def _overdue(
    section: RewardSection, limits: Limits, group: RolloutGroup, held_seconds: float | None = None
) -> Exception:
    """A value's reason where the clock may decide a value, else an error of the run.

    `held_seconds`: how long it held the loop, where it has answered at last.
    """
    failure = f"it gave no answer within {limits.wall_seconds:g} s (rewards.timeout_seconds)"
    if held_seconds is not None:
        failure += f": it held the scorer's loop for {held_seconds:.1f} s without awaiting"
    if limits.clock_decides:
        return CallFailed(failure)
    return RewardError(
        f'reward "{section.name}", group {group.ticket}: {failure}. In a reproducible run the clock must not decide a '
        "value, so the run stops; raise rewards.timeout_seconds or mend the reward"
    )


def _num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
