"""What Prefect sees: flows that supervise runs. They compute nothing; the only importers of prefect."""

from __future__ import annotations

import os

# Prefect reads these once, when it is first imported. What the user has set stands.
for name, value in {
    # Twenty seconds, Prefect's own default, are short for a laptop that is loading models at the same time.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # A flow run's page shows what the supervisor says, such as a stage that is started again.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "agrpo",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}.items():
    os.environ.setdefault(name, value)
