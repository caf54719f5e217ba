"""A run that is killed again and again ends as the run that never was. `make chaos` kills a hundred times."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.killer import Blow
from tests.chaos.promises import Torment, kill_again_and_again


def test_a_lockstep_run_killed_five_times_is_bit_for_bit_the_run_it_would_have_been(
    api: str, tiny_model: Path, tmp_path: Path
) -> None:
    torment = Torment(
        seed=1,
        kills=5,
        flow_every=5,
        steps=30,
        unhurried=False,
        victims=("learner", "generator", "scorer-2", "recorder"),
    )
    outcome = kill_again_and_again(tiny_model, tmp_path, "lockstep", torment)
    print(outcome)
    killed = [strike.victim for strike in outcome.strikes if strike.blow is Blow.KILL]
    assert killed == [*torment.victims, "flow"]
