"""What Prefect is told of a run while it trains, and how often: tags, events, progress, and pages about its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient

from agrpo.instruments.history import FollowedHistory
from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder
from agrpo.records.progress import Event
from flows.artifacts import Artifacts
from flows.events import FollowedEvents, Teller, worth_telling
from flows.tags import tags_of

PROGRESS_SECONDS = 5.0
"""Between two looks into the run's folder, after which events and progress are told."""
PAGES_SECONDS = 30.0
"""Between two versions of table, plots and findings."""

MOST_STEPS = 500
"""Read in one look. Of a long run that is resumed there are thousands, and a cancellation is to be heard meanwhile."""

Act = Callable[[SyncPrefectClient], None]


class Pace:
    """Lets something happen now and then."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: float | None = None

    def due(self, now: float) -> bool:
        """Whether `seconds` have passed since it was last due; the first time it always is."""
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Show:
    """All that is told of one run by the flow run that trains it. Make it before the stages start."""

    def __init__(self, folder: RunFolder, stages: Iterable[str]) -> None:
        self._url = folder.url
        self._document = folder.document()
        self._history = FollowedHistory(folder)
        self._events = FollowedEvents(folder, stages)
        self._untold: list[Event] = []
        self._steps_before = len(done_steps(folder))
        self._pages: Artifacts | None = None
        self._introduced = False
        self._progress_pace, self._pages_pace = Pace(PROGRESS_SECONDS), Pace(PAGES_SECONDS)

    def due(self, flow_run_id: UUID, now: float, *, last: bool) -> dict[str, Act]:
        """What is to be done at the time `now` of a monotonic clock, in order, by what it is called. `last`: all of it."""
        if self._pages is None:
            self._pages = Artifacts(self._document, self._url, flow_run_id)
        pages, history = self._pages, self._history
        teller = Teller(name=self._document["name"], url=self._url, flow_run_id=flow_run_id)
        acts: dict[str, Act] = {}
        if not self._introduced:
            acts["tag this flow run"] = lambda client: self._introduce(client, teller)
        if last or self._progress_pace.due(now):
            acts["read the steps of this run"] = lambda client: self._read()
            acts["tell the events of this run"] = lambda client: self._tell(teller)
            acts["show the progress of this run"] = lambda client: pages.show_progress(client, history.points)
        if last or (history.points and self._pages_pace.due(now)):
            acts["show the steps of this run"] = lambda client: pages.show_steps(client, history.points)
            acts["show the plots of this run"] = lambda client: pages.show_plots(client, history.points)
            acts["show the findings about this run"] = lambda client: pages.show_findings(client, history.points)
        return acts

    def _introduce(self, client: SyncPrefectClient, teller: Teller) -> None:
        present = client.read_flow_run(teller.flow_run_id).tags
        client.update_flow_run(teller.flow_run_id, tags=tags_of(self._document, present))
        teller.tell_started(self._steps_before)
        self._introduced = True

    def _read(self) -> None:
        """Events first: the step that one speaks of is then among the steps."""
        self._untold += self._events.update()
        self._history.update(MOST_STEPS)

    def _tell(self, teller: Teller) -> None:
        rewards = {p.step: p.metrics["reward"] for p in self._history.points if "reward" in p.metrics}
        for event in worth_telling(self._untold):
            teller.tell(event, rewards)
        self._untold = []
