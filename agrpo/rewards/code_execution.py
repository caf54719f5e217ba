"""Whether the program in an answer does what its row's test cases ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from agrpo.errors import RewardError
from agrpo.records.group import RolloutGroup
from agrpo.registry import part
from agrpo.rewards import answer_of, fact_of
from agrpo.rewards.programs.cases import Case, cases_of, code_of
from agrpo.rewards.programs.running import Bounds, Launcher, launched


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examined:
    """What became of one answer."""

    value: float
    failure: str | None = None
    """The first case that it did not pass, and why; None where it passed all."""


@part
class CodeExecution:
    """1 if the answer's Python block passes every test case of its row, 0 if not.

    A case is an input and the output that is expected, or Python that runs behind the program and raises. Each runs in a
    process of its own, without network; `docs/rewards.md` says what it is kept from, and where.
    """

    fact: str = "tests"
    """Column of the dataset that holds the test cases."""
    after: str = "</think>"
    """The answer is the text behind the last one of these, or all of it."""
    partial: bool = False
    """The share of the cases that were passed, in place of all or nothing."""
    cpu_seconds: Annotated[int, Field(ge=1)] = 2
    """Most processor time of one case. The first case that takes more is the answer's last."""
    wall_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 6.0
    """Most time of one case by the clock. The first case that takes longer is the answer's last."""
    memory_bytes: Annotated[int, Field(ge=64 * 2**20)] = 512 * 2**20
    """Most address space, the interpreter's included."""
    output_bytes: Annotated[int, Field(ge=1)] = 2**20
    """Most that it may print."""
    file_bytes: Annotated[int, Field(ge=0)] = 16 * 2**20
    """Longest file that it may write."""
    network: Literal["none", "open"] = "none"
    """`none` is refused where the system cannot take the network away."""

    whole_group: ClassVar[bool] = False

    @property
    def needed_facts(self) -> tuple[str, ...]:
        """As for `Needing`."""
        return (self.fact,)

    @property
    def seconds(self) -> dict[str, float]:
        """As for `Timed`."""
        return {"cpu_seconds": self.cpu_seconds, "wall_seconds": self.wall_seconds}

    def prepare(self) -> None:
        """Run a program. Raises `RewardError` where this system cannot confine it as asked; prints what else it cannot."""
        with launched(self._bounds) as launcher:
            refusal = launcher.means.refusal(self.network)
            if refusal is not None:
                raise RewardError(f'reward "code_execution": {refusal}')
            failure = launcher.run("print(1)", Case(output="1")).failure(Case(output="1"), self._bounds)
            if failure is not None:
                raise RewardError(f'reward "code_execution": print(1) failed: {failure}; raise its limits')
        for what in launcher.means.lacking:
            print(f"code_execution: a program can {what}")

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """From 0 to 1 per rollout; prints why an answer fails, which is a line of the scorer's log."""
        if not group.rollouts:
            return []
        cases = cases_of(fact_of(group, self.fact, "code_execution"), self.fact)
        with launched(self._bounds) as launcher:
            examined = [self._examine(launcher, answer_of(rollout, self.after), cases) for rollout in group.rollouts]
        for rollout, each in zip(group.rollouts, examined, strict=True):
            if each.failure is not None:
                print(f"group {group.ticket}, completion {rollout.index}: {each.failure}")
        return [each.value for each in examined]

    def _examine(self, launcher: Launcher, answer: str, cases: list[Case]) -> _Examined:
        program = code_of(answer)
        if program is None:
            return _Examined(value=0.0, failure="the answer has no block of Python (```python)")
        passed, first = 0, None
        for place, case in enumerate(cases, 1):
            ran = launcher.run(program, case)
            failure = ran.failure(case, self._bounds)
            passed += failure is None
            if failure is not None and first is None:
                first = f"test {place} of {len(cases)}: {failure}"
            if ran.exhausts(self._bounds) or (failure is not None and not self.partial):
                break
        return _Examined(value=passed / len(cases) if self.partial else float(first is None), failure=first)

    @property
    def _bounds(self) -> Bounds:
        return Bounds(
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            memory_bytes=self.memory_bytes,
            output_bytes=self.output_bytes,
            file_bytes=self.file_bytes,
            network=self.network,
        )
