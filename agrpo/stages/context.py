"""What a stage is given: the run it belongs to, who it is, and how it learns that it is asked to end."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StageContext:
    """Handed to a stage's `run`."""

    run_url: str
    """Folder or URL of the run."""
    stage: str
    """Name it was started under: of a stage, or of one more of its workers, such as `scorer-2`."""
    incarnation: str
    """Names this one process among all that ever ran the stage."""
    stop: threading.Event
    """Set when the stage shall end: finish or abandon what is at hand, then return or raise `Stopped`."""
    gpus: str | None = None
    """What `CUDA_VISIBLE_DEVICES` said when its process began, for what a stage starts that sees no GPU itself; None: nothing."""


def new_incarnation(stage: str) -> str:
    """`{stage}-{UTC time}-{6 hex digits}`: sorts by time, never given twice."""
    return f"{stage}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def name_of(incarnation: str) -> str:
    """Name that an incarnation was started under."""
    return incarnation.rsplit("-", 2)[0]
