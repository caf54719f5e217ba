"""Which events of a run's folder are told, and what is said with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import Event
from flows.events import FollowedEvents, payload_of, worth_telling
from tests.flows.points import document


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path / "run"), document())


def event(number: int, kind: str, **payload: object) -> Event:
    return Event(stream="learner-1-a", number=number, kind=kind, at=float(number), attempt=2, payload=payload)


def test_what_was_written_before_is_not_told_again(folder: RunFolder) -> None:
    old = EventStream(folder, "learner-20261129T160937Z-903f82")
    old.write("published", version=0)
    followed = FollowedEvents(folder, ["learner"])
    old.write("published", version=1)
    EventStream(folder, "learner-20261129T170937Z-0003f8").write("published", version=2)
    assert [event.payload["version"] for event in followed.update()] == [1, 2]
    assert followed.update() == []
    old.write("finished", step=3)
    assert [event.kind for event in followed.update()] == ["finished"]


def test_only_the_stages_that_run_here_and_their_supervisor_are_followed(folder: RunFolder) -> None:
    followed = FollowedEvents(folder, ["scorer"])
    for stream in ("learner-20261129T160937Z-903f82", "scorer-20261129T160937Z-903f82", "supervisor-2-a"):
        EventStream(folder, stream).write("something")
    assert [event.stream.partition("-")[0] for event in followed.update()] == ["scorer", "supervisor"]


def test_of_versions_and_checkpoints_the_newest_is_told_and_of_the_rest_all() -> None:
    kinds = ["published", "checkpoint", "stage_restarted", "published", "version_served", "stage_restarted"]
    told = worth_telling([event(number, kind) for number, kind in enumerate(kinds)])
    assert [(event.number, event.kind) for event in told] == [
        (1, "checkpoint"),
        (2, "stage_restarted"),
        (3, "published"),
        (5, "stage_restarted"),
    ]


def test_an_event_is_told_with_its_attempt_and_the_reward_of_its_step() -> None:
    assert payload_of(event(0, "published", version=7, step=8), {8: 0.5}) == {
        "version": 7,
        "step": 8,
        "attempt": 2,
        "reward": 0.5,
    }
    assert payload_of(event(0, "published", version=0, step=0), {8: 0.5}) == {"version": 0, "step": 0, "attempt": 2}
