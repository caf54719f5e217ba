"""Whether the answer equals the solution as mathematics (Math-Verify, https://github.com/huggingface/Math-Verify)."""

from __future__ import annotations

from typing import ClassVar

from agrpo.errors import MissingPackage
from agrpo.records.group import RolloutGroup
from agrpo.registry import part
from agrpo.rewards import answer_of, fact_of


@part
class Accuracy:
    """1 if the text after the last `</think>` equals the fact `solution`, 0 if not, None if that cannot be parsed.

    Math-Verify's own limits are off: they rest on signals, which cannot interrupt what a bad expression keeps busy.
    """

    whole_group: ClassVar[bool] = False
    needed_facts: ClassVar[tuple[str, ...]] = ("solution",)

    def prepare(self) -> None:
        """Import the package and use it once, which builds the patterns that every later call shares."""
        try:
            from math_verify import parse, verify  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackage('reward "accuracy" needs Math-Verify: pip install "agrpo[math]"') from error
        one = parse("$1$", parsing_timeout=0)
        verify(one, one, timeout_seconds=0)

    def __call__(self, group: RolloutGroup) -> list[float | None]:
        """1, 0 or None per rollout."""
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

        solution = parse(str(fact_of(group, "solution", "accuracy")), parsing_timeout=0)
        if not solution:
            return [None for _ in group.rollouts]
        answers = [parse(answer_of(rollout), parsing_timeout=0) for rollout in group.rollouts]
        return [float(verify(solution, answer, timeout_seconds=0)) for answer in answers]
