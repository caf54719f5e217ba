"""A run as its user has it: the flow that `agrpo resume` starts, and the stages it starts, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from agrpo.queue.run_folder import RunFolder

ROOT = Path(__file__).parent.parent.parent


class Running:
    """One run's processes. A context manager; on its end none is left."""

    def __init__(self, folder: RunFolder, log: Path) -> None:
        self.folder = folder
        self.log = log
        """What every flow printed."""
        self.flow: subprocess.Popen[bytes] | None = None
        self.flows = 0

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.flow is not None and self.flow.poll() is None:
            self.flow.send_signal(signal.SIGCONT)
            self.flow.terminate()
            try:
                self.flow.wait(20)
            except subprocess.TimeoutExpired:
                self.flow.kill()
        for pid in self.stages().values():
            send(pid, signal.SIGKILL)

    def go_on(self) -> None:
        """Start a flow that takes the run up."""
        self.flows += 1
        with self.log.open("ab") as log:
            log.write(f"==== flow {self.flows}\n".encode())
            log.flush()
            self.flow = subprocess.Popen(
                [sys.executable, "-m", "agrpo", "resume", self.folder.url, "--plain"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_learner(self) -> subprocess.Popen[bytes]:
        """A learner whom no flow has started. The caller ends it."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "agrpo.stages", "learner", self.folder.url],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": str(self.folder.document()["threads"]),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stages(self) -> dict[str, int]:
        """Process of every stage that lives, by its name. One that is dead and not reaped has no command line."""
        found: dict[str, int] = {}
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"agrpo.stages" in words and self.folder.url.encode() in words:
                found[words[words.index(b"agrpo.stages") + 1].decode()] = int(file.parent.name)
        return found

    @property
    def over(self) -> bool:
        """Whether the learner has had its last step."""
        hint = self.folder.hint()
        return hint is not None and hint.finished

    def told(self) -> str:
        """The last lines of the flows."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; False: it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
