"""A run's server under its supervision, and the processes that it consists of."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

from agrpo.config import SupervisionSection
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.process import Supervisor
from agrpo.stages.supervision import Supervision


class Kept:
    """A run's server under its supervision, with what is told of it. A context manager; on its end it is stopped."""

    def __init__(self, folder: RunFolder, supervisor: Supervisor) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.stop = threading.Event()
        rule = SupervisionSection(first_pause_seconds=0.0)
        supervision = Supervision(supervisor, rule, on_event=lambda kind, payload: self.told.append((kind, payload)))
        self.thread = threading.Thread(target=supervision.run, args=("server", self.stop))

    def __enter__(self) -> Kept:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(20)

    @property
    def group(self) -> int:
        """Of the incarnation that was started last."""
        return self.told[-1][1]["pid"]


def of_group(group: int) -> dict[int, str]:
    """The living processes of a group, with what each calls itself. vLLM's have no environment of their own to look into."""
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found[int(stat.parent.name)] = stat.with_name("cmdline").read_text().replace("\0", " ")
        except (OSError, ProcessLookupError):
            continue
    return found


def one_of(group: int, word: str) -> int:
    """The process of the group whose name has this word."""
    [pid] = [pid for pid, name in of_group(group).items() if word in name]
    return pid


def asked(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        return json.load(answer)
