"""How a run ended, where a stage failed: that comes before everything that its measures say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.instruments.diagnosis.finding import Finding, Severity

if TYPE_CHECKING:
    from agrpo.database.queries import HasDatabase

_FAILED = """
    SELECT payload->>'$.stage' AS stage, payload->>'$.reason' AS reason
    FROM events
    WHERE kind = 'stage_failed' AND NOT EXISTS (
        SELECT 1 FROM events AS later WHERE later.kind = 'stage_started' AND later.happened_at > events.happened_at
    )
    ORDER BY happened_at
    LIMIT 1
"""


def recorded_ending(database: str | Path | HasDatabase) -> list[Finding]:
    """The first stage that failed since the run was last started, as a finding; none where no stage did.

    Raises as `database.queries.connect`.
    """
    from agrpo.database.queries import query

    return [
        Finding(
            rule="agrpo/stage-failed",
            severity=Severity.WARNING,
            title="The run has stopped: a stage failed",
            reading=f"{row['reason'] or row['stage']}.",
            change="Mend what it names; `agrpo resume` then goes on from the last finished step.",
        )
        for row in query(database, _FAILED).to_pylist()
    ]
