"""Who has said nothing for how long, by the clock of who asks."""

from __future__ import annotations

import json

import pytest

from agrpo.queue.run_folder import RunFolder
from agrpo.stages import silence
from agrpo.stages.silence import Silence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The time this process goes by, to be set."""
    now = {"now": 100.0}
    monkeypatch.setattr(silence.time, "monotonic", lambda: now["now"])
    return now


def test_silence_begins_with_the_last_new_beat(folder: RunFolder, clock: dict[str, float]) -> None:
    heard = Silence(folder, "scorer")
    folder.beat("scorer", None)
    clock["now"] = 103.0
    heard.look()
    clock["now"] = 107.0
    heard.look()
    assert (heard.seconds("scorer"), heard.seconds("scorer-2")) == (4.0, 7.0)


@pytest.mark.parametrize("told_at", [-1e9, 4e9])
def test_a_clock_that_is_wrong_elsewhere_changes_nothing(
    folder: RunFolder, clock: dict[str, float], told_at: float
) -> None:
    heard = Silence(folder, "generator")
    beat = {"stage": "generator", "waiting_for": None, "waited_seconds": 0.0, "at": told_at}
    folder.filesystem.put("beat/generator.json", json.dumps(beat).encode(), exclusive=False)
    clock["now"] = 105.0
    heard.look()
    clock["now"] = 106.0
    assert heard.seconds("generator") == 1.0
