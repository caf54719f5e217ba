"""Artifacts: the pages on which Prefect shows a run while it trains (docs/prefect.md).

Each is created once per flow run and then changed in place. A second `create` would be a row more in the server's
database every few seconds, and so would Prefect's own update, which tells an event that repeats the whole content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate

from agrpo.config import load_settings
from agrpo.instruments.diagnosis import Severity, diagnose
from agrpo.instruments.history import StepPoint
from flows import content


class Artifact:
    """One page about a run, as this flow run shows it."""

    def __init__(self, kind: str, name: str, run_name: str, flow_run_id: UUID) -> None:
        self.key = artifact_key(name, run_name)
        self._kind = kind
        self._flow_run_id = flow_run_id
        self._id: UUID | None = None
        self._shown: Any = None

    @property
    def is_shown(self) -> bool:
        return self._id is not None

    def show(self, client: SyncPrefectClient, data: str | float, description: str) -> None:
        """Create the page, or change it where it says something else."""
        document: dict[str, Any] = {"data": data, "description": description}
        if document == self._shown:
            return
        if self._id is None:
            created = client.create_artifact(
                ArtifactCreate(key=self.key, type=self._kind, flow_run_id=self._flow_run_id, **document)
            )
            self._id = created.id
        else:
            client.request("PATCH", "/artifacts/{id}", path_params={"id": self._id}, json=document)
        self._shown = document


class Artifacts:
    """All pages about one run."""

    def __init__(self, document: Mapping[str, Any], url: str, flow_run_id: UUID) -> None:
        self._document = document
        self._where = f"Run folder: `{url}`"
        name = document["name"]
        self._progress = Artifact("progress", "progress", name, flow_run_id)
        self._steps = Artifact("table", "steps", name, flow_run_id)
        self._plots = Artifact("markdown", "plots", name, flow_run_id)
        self._findings = Artifact("markdown", "findings", name, flow_run_id)

    def show_progress(self, client: SyncPrefectClient, points: Sequence[StepPoint]) -> None:
        """Percent, and in words step, reward and time left."""
        told = f"{content.progress_text(self._document, points)}\n\n{self._where}"
        self._progress.show(client, round(content.percent_done(self._document, points), 1), told)

    def show_steps(self, client: SyncPrefectClient, points: Sequence[StepPoint]) -> None:
        """The newest steps as a table."""
        if points:
            rows = content.table_rows(points)
            told = f"The last {len(rows)} steps, newest first; {content.UNITS}"
            self._steps.show(client, json.dumps(rows, ensure_ascii=False), told)

    def show_plots(self, client: SyncPrefectClient, points: Sequence[StepPoint]) -> None:
        """Reward and length over all steps."""
        if points:
            self._plots.show(client, content.plots(points), f"Reward and length, steps 1 to {points[-1].step}")

    def show_findings(self, client: SyncPrefectClient, points: Sequence[StepPoint]) -> None:
        """What the diagnosis says, once it has warned."""
        findings = diagnose(points, load_settings(self._document).tree) if points else []
        warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
        if warnings or self._findings.is_shown:
            told = f"Warnings as of step {points[-1].step}" if points else ""
            self._findings.show(client, content.findings_text(warnings), told)


def artifact_key(name: str, run_name: str) -> str:
    """Where a page of a run is found; later flow runs that go on with the run add versions to it."""
    return re.sub("[^a-z0-9-]+", "-", f"{name}-{run_name}".lower())
