"""Events: what happens in a run, told to Prefect so that automations can act on it (docs/prefect.md).

Each is derived from an event that a stage, or this supervisor, wrote into the run's folder. While Prefect cannot be told,
nothing is lost: the events lie in the folder, and the next `tell` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.events import emit_event

from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Event
from flows.record import SUPERVISOR

STARTED = "agrpo.run.started"
NAMES: Mapping[str, str] = {
    "published": "agrpo.version.published",
    "checkpoint": "agrpo.checkpoint.written",
    "checkpoint_skipped": "agrpo.checkpoint.skipped",
    "exported": "agrpo.export.written",
    "weights_mended": "agrpo.version.mended",
    "went_back": "agrpo.run.went_back",
    "replay_differs": "agrpo.run.replay_differs",
    "stage_stalled": "agrpo.stage.stalled",
    "stage_restarted": "agrpo.stage.restarted",
    "stage_failed": "agrpo.stage.failed",
    "finished": "agrpo.run.finished",
}
"""Prefect's event for each kind in the run's folder. Other kinds stay there."""
FREQUENT = {"published", "checkpoint"}
"""Kinds of which only the newest is told where several have come since."""


class FollowedEvents:
    """The events of the stages that run here and of their supervisor, from now on."""

    def __init__(self, folder: RunFolder, stages: Iterable[str]) -> None:
        self._folder = folder
        self._writers = {*stages, SUPERVISOR}
        self._next = {stream: len(folder.event_numbers(stream)) for stream in self._streams()}

    def update(self) -> list[Event]:
        """Those written since the last look, by time."""
        found: list[Event] = []
        for stream in self._streams():
            number = self._next.setdefault(stream, 0)
            while (event := self._folder.event(stream, number)) is not None:
                found.append(event)
                number += 1
            self._next[stream] = number
        return sorted(found, key=lambda event: event.at)

    def _streams(self) -> list[str]:
        """A stream is called after its writer's incarnation: stage, time, and a random word."""
        return [name for name in self._folder.event_streams() if name.rsplit("-", 2)[0] in self._writers]


def worth_telling(events: Sequence[Event]) -> list[Event]:
    """Of events by time, those that have a name here; of the frequent kinds only the newest."""
    newest = {event.kind: event for event in events}
    return [
        event for event in events if event.kind in NAMES and (event.kind not in FREQUENT or newest[event.kind] is event)
    ]


def payload_of(event: Event, rewards: Mapping[int, float]) -> dict[str, Any]:
    """What the event says, the attempt, and the mean reward of its step where there is one."""
    said = dict(event.payload)
    if event.attempt is not None:
        said["attempt"] = event.attempt
    if said.get("step") in rewards:
        said["reward"] = rewards[said["step"]]
    return said


@dataclass(frozen=True, kw_only=True, slots=True)
class Teller:
    """Speaks of one run, as one flow run."""

    name: str
    """Of the run."""
    url: str
    """Of its folder."""
    flow_run_id: UUID

    def tell_started(self, steps_done: int) -> None:
        """This flow run has taken up the run, of which so many steps were done before."""
        self._emit(STARTED, {"steps_done": steps_done}, datetime.now(UTC))

    def tell(self, event: Event, rewards: Mapping[int, float]) -> None:
        """One event of the folder, of a kind that has a name here."""
        self._emit(NAMES[event.kind], payload_of(event, rewards), datetime.fromtimestamp(event.at, UTC))

    def _emit(self, event: str, payload: dict[str, Any], occurred: datetime) -> None:
        """Hand it to Prefect's own thread."""
        resource = {"prefect.resource.id": f"agrpo.run.{self.name}", "prefect.resource.name": self.name}
        flow_run = {
            "prefect.resource.id": f"prefect.flow-run.{self.flow_run_id}",
            "prefect.resource.role": "flow-run",
            "prefect.resource.name": self.name,
        }
        emit_event(
            event=event,
            resource=resource,
            related=[flow_run],
            payload={"run": self.url, **payload},
            occurred=occurred,
        )
