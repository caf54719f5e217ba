"""Runs to watch: looks made by hand, and folders as the stages of a run that goes on leave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agrpo.instruments.diagnosis import Finding
from agrpo.instruments.history import StepPoint
from agrpo.instruments.live.looking import STAGES, Look, Pipeline, StageWord, State
from agrpo.instruments.live.notices import Notice
from agrpo.queue.run_folder import RunFolder, StepKey
from agrpo.records.progress import DropReason, Hint
from tests.database.synthetic import add_attempt, add_done, add_group, add_plan, add_scores

NOW = 1_700_000_100.0


def document(**stop: Any) -> dict[str, Any]:
    tree = {
        "run": {"name": "small"},
        "step": {"groups": 1, "zero_variance": None},
        "async": {"max_staleness": 2},
        "stop": stop or {"max_steps": 4},
        "recorder": {"every_seconds": 2.0},
    }
    return {"name": "small", "settings": {"tree": tree, "origins": {}}, "prompts_per_epoch": 10, "threads": 1}


def point(step: int, *, attempt: int = 0, **metrics: float) -> StepPoint:
    """A step of 10 s that ended 10 s before the next. `__` stands for `/` in a measure's name."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return StepPoint(step=step, attempt=attempt, finished_at=NOW + 10 * (step - 3), num_prompts=4 * step, metrics=named)


def looked(
    points: Sequence[StepPoint] = (),
    *,
    state: State = State.TRAINING,
    stages: Sequence[StageWord] | None = None,
    notices: Sequence[Notice] = (),
    findings: Sequence[Finding] = (),
    told: Mapping[str, Any] | None = None,
    ended: bool = False,
    at: float = NOW,
    attempt: int | None = None,
) -> Look:
    """A look at `NOW`; every stage works unless something else is given."""
    return Look(
        at=at,
        document=told or document(),
        url="/runs/small",
        state=state,
        ended=ended,
        points=points,
        attempt=attempt if attempt is not None else points[-1].attempt if points else 0,
        moved_at=points[-1].finished_at if points else NOW,
        new_points=points,
        stages=[StageWord(name=name, spoken=True) for name in STAGES] if stages is None else stages,
        pipeline=Pipeline(generating=3, unscored=1, scored=11, most=69),
        notices=notices,
        new_notices=notices,
        findings=findings,
    )


def going_on(place: Path) -> RunFolder:
    """A run of 4 steps that has done one: 6 tickets claimed, 5 generated, 4 scored, 1 trained, 1 dropped; told up to 9."""
    folder = RunFolder.create(str(place), document())
    add_attempt(folder, 0)
    for ticket in range(5):
        add_group(folder, ticket)
    folder.claims.take(5, owner="generator-a", base=0)
    for ticket in range(4):
        add_scores(folder, ticket)
    add_done(folder, add_plan(folder, StepKey(0, 1), [0], {1: DropReason.STALE}))
    folder.write_hint(Hint(limit_ticket=9, dropped=1, floor=2))
    return folder
