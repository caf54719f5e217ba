"""`make chaos`: runs of several seeds in both modes, struck at until KILLS processes were killed. Takes some twenty minutes.

KILLS=20 SEEDS="7 8" of the environment choose how often, and which runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.killer import Blow, table
from tests.chaos.promises import Outcome, Torment, kill_again_and_again
from tests.chaos.tiny import MODES

KILLS = int(os.environ.get("KILLS", "100"))
SEEDS = [int(seed) for seed in os.environ.get("SEEDS", "1 2").split()]
KILLS_PER_RUN = -(-KILLS // (len(SEEDS) * len(MODES)))
STEPS_PER_KILL = 3
"""So many that the last kill comes before the last step."""


@pytest.fixture(scope="module")
def tell(pytestconfig: pytest.Config) -> Callable[[object], None]:
    """Say something at once."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(told: object) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{told}", flush=True)

    return say


@pytest.fixture(scope="module")
def outcomes(tell: Callable[[object], None]) -> Iterator[list[Outcome]]:
    """Of the runs so far; told together at the end."""
    found: list[Outcome] = []
    yield found
    strikes = [strike for outcome in found for strike in outcome.strikes]
    tell("\n".join([*map(str, found), "", table(strikes)]))


@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_run_killed_again_and_again_keeps_its_promises(
    tiny_model: Path, tmp_path: Path, outcomes: list[Outcome], *, mode: str, seed: int
) -> None:
    torment = Torment(seed=seed, kills=KILLS_PER_RUN, flow_every=10, steps=STEPS_PER_KILL * KILLS_PER_RUN)
    outcomes.append(kill_again_and_again(tiny_model, tmp_path, mode, torment))
    assert sum(strike.blow is Blow.KILL for strike in outcomes[-1].strikes) >= KILLS_PER_RUN
