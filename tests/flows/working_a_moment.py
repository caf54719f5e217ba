"""A stage that works until the run's two servers answer, and leaves a mark of what it has seen."""

from __future__ import annotations

from pathlib import Path

from agrpo.queue.run_folder import RunFolder
from agrpo.stages import StageContext
from agrpo.waiting import wait_for


def run(context: StageContext) -> None:
    folder = RunFolder.open(context.run_url)
    urls = wait_for(
        "two servers",
        lambda: urls if len(urls := folder.server_urls()) == 2 else None,
        deadline_seconds=30,
        stop=context.stop,
    )
    Path(context.run_url, "seen").write_text(str([url.partition(":")[0] for url in urls]))
