"""What a flow run tells Prefect's API of its run: tags, pages that are changed in place, events. And how often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agrpo.queue.run_folder import EventStream, RunFolder
from agrpo.records.progress import Base, Done
from flows.show import PAGES_SECONDS, PROGRESS_SECONDS, Pace, Show
from tests.flows.points import document
from tests.processes import until

# Prefect leaves a socket to the garbage collector now and then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TAGS, READ, EVENTS, PROGRESS, *PAGES = [
    "tag this flow run",
    "read the steps of this run",
    "tell the events of this run",
    "show the progress of this run",
    "show the steps of this run",
    "show the plots of this run",
    "show the findings about this run",
]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(str(tmp_path / "run"), {**document(), "name": tmp_path.name})
    folder.write_base(Base(attempt=0))
    return folder


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def flow_run(client: Any) -> UUID:
    """One that nobody executes, with a tag of its own."""
    from prefect import flow

    return client.create_flow_run(flow(name="shown")(lambda: None), tags=["nightly"]).id


def finish_step(folder: RunFolder, step: int, **metrics: float) -> None:
    done = Done(
        attempt=0,
        step=step,
        digest="d",
        digests={},
        loss=0.0,
        grad_norm=0.0,
        metrics=metrics,
        samples=[],
        num_tokens=10 * step,
        num_prompts=2 * step,
        publish=None,
        empty=False,
        started_at=20.0 * step - 1,
        finished_at=20.0 * step,
    )
    assert folder.write_done(done)


def look(show: Show, client: Any, flow_run: UUID, now: float, *, last: bool = False) -> list[str]:
    acts = show.due(flow_run, now, last=last)
    for act in acts.values():
        act(client)
    return list(acts)


def artifacts_of(client: Any, flow_run: UUID) -> list[Any]:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    return client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run])))


def test_something_at_a_pace_is_due_once_in_so_many_seconds() -> None:
    pace = Pace(5.0)
    assert [now for now in (0.0, 2.0, 4.9, 5.0, 7.0, 11.0, 15.9, 16.0) if pace.due(now)] == [0.0, 5.0, 11.0, 16.0]


def test_folder_and_progress_are_looked_at_at_one_pace_and_pages_at_a_slower_one(
    folder: RunFolder, client: Any, flow_run: UUID
) -> None:
    show = Show(folder, ["learner"])
    assert look(show, client, flow_run, 100.0) == [TAGS, READ, EVENTS, PROGRESS]
    assert look(show, client, flow_run, 102.0) == []
    finish_step(folder, 1, reward=0.5)
    now = 100.0 + PROGRESS_SECONDS
    assert look(show, client, flow_run, now) == [READ, EVENTS, PROGRESS]
    assert look(show, client, flow_run, now + 2.0) == PAGES
    assert look(show, client, flow_run, now + PROGRESS_SECONDS) == [READ, EVENTS, PROGRESS]
    assert PAGES_SECONDS == 6 * PROGRESS_SECONDS
    assert look(show, client, flow_run, now + 2.0 + PAGES_SECONDS) == [READ, EVENTS, PROGRESS, *PAGES]
    assert look(show, client, flow_run, now + 3.0 + PAGES_SECONDS, last=True) == [READ, EVENTS, PROGRESS, *PAGES]


def test_each_page_is_one_artifact_that_is_changed_in_place(folder: RunFolder, client: Any, flow_run: UUID) -> None:
    show = Show(folder, ["learner"])
    look(show, client, flow_run, 0.0)
    for step in (1, 2, 3):
        finish_step(folder, step, reward=step / 4)
        look(show, client, flow_run, 100.0 * step)
        look(show, client, flow_run, 100.0 * step, last=True)
    artifacts = {artifact.key.partition("-")[0]: artifact for artifact in artifacts_of(client, flow_run)}
    assert len(artifacts_of(client, flow_run)) == 3
    assert artifacts["progress"].data == 5.0
    assert artifacts["progress"].description.startswith(
        "step 3 of 60 · reward 0.750\n\nabout 19 min left\n\nRun folder: `"
    )
    assert [(row["step"], row["reward"]) for row in json.loads(artifacts["steps"].data)] == [
        (3, "0.750"),
        (2, "0.500"),
        (1, "0.250"),
    ]
    assert "highest 0.75 at step 3" in artifacts["plots"].data


def test_a_flow_run_is_tagged_after_its_run(folder: RunFolder, client: Any, flow_run: UUID) -> None:
    look(Show(folder, ["learner"]), client, flow_run, 0.0)
    tags = client.read_flow_run(flow_run).tags
    assert set(tags) == {"nightly", "agrpo", "sums", "thinking-seed1/model", "thinking-seed1/prompts.parquet"}


def test_findings_have_a_page_once_one_of_them_warns(folder: RunFolder, client: Any, flow_run: UUID) -> None:
    show = Show(folder, ["learner"])
    for step in range(1, 41):
        # All collapses onto one answer per prompt, and the reward does not rise.
        finish_step(folder, step, reward=0.5, entropy=1 / step, **{"completions/duplicate_frac": step / 50})
    look(show, client, flow_run, 0.0, last=True)
    [findings] = [found for found in artifacts_of(client, flow_run) if found.key.startswith("findings-")]
    assert findings.description == "Warnings as of step 40"
    assert findings.data.startswith("### warning: ")


@pytest.mark.slow
def test_events_of_the_run_reach_those_who_wait_for_them(folder: RunFolder, client: Any, flow_run: UUID) -> None:
    from prefect.automations import Automation
    from prefect.events.actions import DoNothing
    from prefect.events.filters import EventFilter, EventNameFilter
    from prefect.events.schemas.automations import EventTrigger, Posture

    def told(*names: str) -> list[Any]:
        found = client.read_events(filter=EventFilter(event=EventNameFilter(name=list(names))), limit=50).events
        return [event for event in found if event.resource.id == f"agrpo.run.{folder.document()['name']}"]

    trigger = EventTrigger(
        expect={"agrpo.run.finished"},
        match={"prefect.resource.id": f"agrpo.run.{folder.document()['name']}"},
        posture=Posture.Reactive,
        threshold=1,
    )
    automation = Automation(name="after a run", trigger=trigger, actions=[DoNothing()]).create()
    show = Show(folder, ["learner"])
    events = EventStream(folder, "learner-20261129T160937Z-903f82")
    finish_step(folder, 1, reward=0.5)
    for version in (0, 1):
        events.write("published", attempt=0, version=version, step=version, digest="d")
    look(show, client, flow_run, 0.0)
    events.write("finished", attempt=0, step=1, digest="d")
    look(show, client, flow_run, 1.0, last=True)
    until(lambda: told("agrpo.run.finished"), 60)
    [published], [finished] = told("agrpo.version.published"), told("agrpo.run.finished")
    assert published.payload == {
        "run": folder.url,
        "version": 1,
        "step": 1,
        "digest": "d",
        "attempt": 0,
        "reward": 0.5,
    }
    assert finished.related[0].id == f"prefect.flow-run.{flow_run}"
    assert [event.payload["steps_done"] for event in told("agrpo.run.started")] == [0]

    def fired() -> list[Any]:
        found = client.read_events(
            filter=EventFilter(event=EventNameFilter(name=["prefect.automation.triggered"])), limit=50
        )
        return [event for event in found.events if event.resource.id == f"prefect.automation.{automation.id}"]

    until(fired, 60)
