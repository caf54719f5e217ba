"""Strikes at random at the processes of one run until it is over, and keeps a table of what that cost."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agrpo.config import RunConfig, load_settings
from agrpo.queue.history import done_steps
from agrpo.stages import stages_of
from tests.chaos.running import Running, send

FLOW = "flow"
SHARE_PAUSED = 0.25
"""Of the blows to stages."""
SHARE_AMID_RESTART = 0.3
"""Of all blows: without waiting for a step since the last one."""
UP_SECONDS = 120.0
"""Longest wait for a step after a blow."""
LOOK_SECONDS = 0.05


class Blow(StrEnum):
    """What is done to a process."""

    KILL = "kill"
    PAUSE = "pause"
    """SIGSTOP and, a while later, SIGCONT."""
    USURP = "usurp"
    """A second learner takes the run over while the first one lives, as another machine's would, and is killed itself."""


@dataclass(kw_only=True)
class Strike:
    """One blow and what it cost."""

    victim: str
    blow: Blow
    at_step: int
    lost_seconds: float | None = None
    """Until the next step was done; None: the next blow came first."""


@dataclass(kw_only=True)
class Killer:
    """Kills `kills` times. `check` is called after every strike; `check_still` when the flow was killed and nothing runs."""

    running: Running
    seed: int
    kills: int
    flow_every: int
    """Every so manieth kill is the flow's, which takes all stages along; half way to it another learner usurps the run."""
    check: Callable[[], None]
    check_still: Callable[[], None]
    victims: Sequence[str] = ()
    """Stages to kill, in this order; after them, as from the start where there are none, chance chooses."""
    strikes: list[Strike] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        config = RunConfig.build(load_settings(self.running.folder.document()))
        self.names = [*stages_of(config.workers), "learner", FLOW]
        """The learner twice: it has most to lose."""

    def rage(self) -> None:
        """From the start of the run to its end."""
        self.running.go_on()
        self._await_step(0)
        while not self.running.over and self.num_kills < self.kills:
            self._strike_once()
        self._await_end()

    @property
    def num_kills(self) -> int:
        return sum(strike.blow is Blow.KILL for strike in self.strikes)

    def steps(self) -> int:
        """Steps done on the history."""
        return max((done.step for done in done_steps(self.running.folder)), default=0)

    # ---- striking

    def _strike_once(self) -> None:
        time.sleep(self.random.uniform(0.0, 1.2))
        at_step, struck_at = self.steps(), time.monotonic()
        struck = self._at_the_flow() or self._at_a_stage()
        if struck is None:
            self._keep_going()
            return
        victim, blow = struck
        strike = Strike(victim=victim, blow=blow, at_step=at_step)
        self.strikes.append(strike)
        if len(self.strikes) > len(self.victims) and self.random.random() < SHARE_AMID_RESTART:
            time.sleep(self.random.uniform(0.0, 5.0))
            self._keep_going()
        else:
            self._await_step(at_step)
            strike.lost_seconds = time.monotonic() - struck_at
        self.check()

    def _at_a_stage(self) -> tuple[str, Blow] | None:
        """Kill a stage or pause it, or pause the flow; None: it was gone."""
        flow = self.running.flow
        stages = self.running.stages() | ({} if flow is None else {FLOW: flow.pid})
        named = list(self.victims[len(self.strikes) : len(self.strikes) + 1])
        names = [name for name in named or self.names if name in stages]
        if not names:
            return None
        victim = self.random.choice(names)
        if named or (victim != FLOW and self.random.random() >= SHARE_PAUSED):
            return (victim, Blow.KILL) if send(stages[victim], signal.SIGKILL) else None
        if not send(stages[victim], signal.SIGSTOP):
            return None
        time.sleep(self.random.uniform(0.1, 3.0))
        send(stages[victim], signal.SIGCONT)
        return victim, Blow.PAUSE

    def _at_the_flow(self) -> tuple[str, Blow] | None:
        """What is due to it by the count of kills."""
        turn = self.num_kills % self.flow_every
        if turn == self.flow_every - 1:
            self._kill_flow()
            return FLOW, Blow.KILL
        usurped = sum(strike.blow is Blow.USURP for strike in self.strikes)
        if turn == self.flow_every // 2 and usurped * self.flow_every < self.num_kills and not self.victims:
            self._usurp()
            return FLOW, Blow.USURP
        return None

    def _kill_flow(self) -> None:
        """Kill the flow, look at what it leaves, and go on."""
        flow = self.running.flow
        assert flow is not None
        flow.kill()
        flow.wait()
        deadline = time.monotonic() + 15
        while self.running.stages():
            assert time.monotonic() < deadline, f"{self.running.stages()} outlived their flow by 15 s"
            time.sleep(LOOK_SECONDS)
        self.check_still()
        self.running.go_on()

    def _usurp(self) -> None:
        """Have another learner retire the first, which ends that one's flow; kill it some time later, and go on."""
        flow = self.running.flow
        assert flow is not None
        usurper = self.running.start_learner()
        try:
            deadline = time.monotonic() + UP_SECONDS
            while flow.poll() is None:
                assert time.monotonic() < deadline, f"two learners for {UP_SECONDS:.0f} s\n{self.running.told()}"
                time.sleep(LOOK_SECONDS)
            if not self.running.over:
                assert "Retired" in self.running.told(), f"the flow ended by itself:\n{self.running.told()}"
            time.sleep(self.random.uniform(0.0, 2.0))
        finally:
            usurper.kill()
            usurper.wait()
        self.running.go_on()

    # ---- going on

    def _keep_going(self) -> None:
        """Take the run up again where its flow has ended before it."""
        flow = self.running.flow
        if flow is not None and flow.poll() is not None and not self.running.over:
            assert self._ended_by_a_kill(), f"the flow ended by itself:\n{self.running.told()}"
            self.running.go_on()

    def _ended_by_a_kill(self) -> bool:
        return "was killed by SIGKILL" in self.running.told()

    def _await_step(self, step: int) -> None:
        """Until a step after `step` is done."""
        deadline = time.monotonic() + UP_SECONDS
        while self.steps() <= step and not self.running.over:
            assert time.monotonic() < deadline, (
                f"no step after {step} within {UP_SECONDS:.0f} s; alive: {self.running.stages()}\n{self.running.told()}"
            )
            self._keep_going()
            time.sleep(LOOK_SECONDS)

    def _await_end(self) -> None:
        while not self.running.over:
            self._await_step(self.steps())
        flow = self.running.flow
        assert flow is not None
        if flow.wait(UP_SECONDS) != 0:
            assert self._ended_by_a_kill(), f"the flow ended by itself:\n{self.running.told()}"
            self.running.go_on()
            assert self.running.flow is not None
            assert self.running.flow.wait(UP_SECONDS) == 0, self.running.told()
        assert not self.running.stages(), f"{self.running.stages()} outlived their run"


def table(strikes: Sequence[Strike]) -> str:
    """What was done, and what it cost, by victim. Seconds are those from a kill to the next step done."""
    lines = [f"{'victim':<12} {'kills':>5} {'pauses':>6} {'usurped':>7} {'lost s, mean':>12} {'longest':>8}"]
    for victim in sorted({strike.victim for strike in strikes}):
        own = [strike for strike in strikes if strike.victim == victim]
        count = {blow: sum(strike.blow is blow for strike in own) for blow in Blow}
        lost = [s.lost_seconds for s in own if s.lost_seconds is not None and s.blow is Blow.KILL]
        told = f"{sum(lost) / len(lost):12.1f} {max(lost):8.1f}" if lost else f"{'-':>12} {'-':>8}"
        counted = f"{count[Blow.KILL]:5} {count[Blow.PAUSE]:6} {count[Blow.USURP]:7}"
        lines.append(f"{victim:<12} {counted} {told}")
    return "\n".join(lines)
