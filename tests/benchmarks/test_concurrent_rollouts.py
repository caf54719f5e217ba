"""The benchmark of concurrent rollouts drives the generator's own stage, and reckons its ceiling right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import concurrent_rollouts

        yield concurrent_rollouts


def test_the_ceiling_is_what_the_tools_alone_take(script: Any):
    load = script.Load(rollouts=512, turns=4, seconds=0.5, waves=3)
    assert (load.num_groups, load.ceiling_seconds) == (192, 6.0)


def test_both_kinds_of_tools_are_called_every_turn_by_the_generators_stage(script: Any, tmp_path: Path):
    load = script.Load(rollouts=16, turns=2, seconds=0.1, waves=2)
    found = script.measure(tmp_path, "both, drawn by the seed", load)
    assert (found.num_rollouts, found.num_turns, found.num_calls) == (32, 32 * 3, 32 * 2)
    assert found.seconds >= load.ceiling_seconds
    assert found.late_seconds > 0 and found.turn_seconds > 0
    assert found.call_seconds == pytest.approx(1.5 * found.turn_seconds)
    assert found.most_threads > 2


def test_a_call_that_failed_is_not_taken_for_a_quick_one(script: Any):
    call = SimpleNamespace(failure="raised", duration_seconds=0.0)
    group = SimpleNamespace(rollouts=[SimpleNamespace(tool_calls=[call], turns=[])], claimed_at=0.0, finished_at=1.0)
    load = script.Load(rollouts=8, turns=1, seconds=0.1, waves=1)
    made = SimpleNamespace(groups=[group], loop_seconds=1.0)
    with pytest.raises(AssertionError, match="0 calls gave a result; expected 1"):
        script.measured(made, load, most_threads=1)
