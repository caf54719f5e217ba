"""The measures of a run, step by step, as the learner logged them: from the folder while it goes on, or from the database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.queue.history import done_steps
from agrpo.queue.run_folder import RunFolder, StepKey

if TYPE_CHECKING:
    from agrpo.database.queries import HasDatabase

_RECORDED = """
    SELECT step, attempt, epoch(finished_at) AS finished_at, num_prompts,
        map_from_entries(list((name, value) ORDER BY name) FILTER (name IS NOT NULL)) AS metrics
    FROM live_steps LEFT JOIN live_metrics USING (attempt, step)
    GROUP BY ALL
    ORDER BY step
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPoint:
    """One finished optimizer step of the history."""

    step: int
    attempt: int
    finished_at: float
    """Unix seconds."""
    num_prompts: int
    """Prompts consumed since the start of the run."""
    metrics: Mapping[str, float]
    """By documented name (docs/metrics.md); a measure with nothing to say is absent."""


class FollowedHistory:
    """The history of a run that may still go on, read from its folder. Each step is read once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._points: dict[StepKey, StepPoint] = {}

    @property
    def points(self) -> list[StepPoint]:
        """As of the last `update`, by step."""
        return list(self._points.values())

    def update(self, most: int | None = None) -> list[StepPoint]:
        """Look again; the steps that were not there before. A step that a resume took back is gone from `points`.

        `most`: how many new steps to read now; the next look goes on from there.
        """
        before = self._points
        self._points = {}
        new: list[StepPoint] = []
        for key in done_steps(self._folder):
            point = before.get(key)
            if point is None:
                if most is not None and len(new) >= most:
                    break
                point = self._read(key)
                if point is None:
                    continue
                new.append(point)
            self._points[key] = point
        return new

    def _read(self, key: StepKey) -> StepPoint | None:
        done = self._folder.done(key)
        if done is None:
            return None
        return StepPoint(
            step=done.step,
            attempt=done.attempt,
            finished_at=done.finished_at,
            num_prompts=done.num_prompts,
            # Thousands of steps repeat some sixty names.
            metrics={sys.intern(name): value for name, value in done.metrics.items()},
        )


def recorded_history(database: str | Path | HasDatabase) -> list[StepPoint]:
    """The history as the database has it. Raises as `database.queries.connect`."""
    from agrpo.database.queries import query

    return [_point(row) for row in query(database, _RECORDED).to_pylist()]


def _point(row: dict[str, Any]) -> StepPoint:
    return StepPoint(
        step=row["step"],
        attempt=row["attempt"],
        finished_at=row["finished_at"],
        num_prompts=row["num_prompts"],
        metrics=dict(row["metrics"] or []),
    )
