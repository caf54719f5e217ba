"""Groups per second that a topic takes, beside a bare write and fsync of the same bytes. Argument: a folder."""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.topic import Topic

GROUP_BYTES = {"8 rollouts of 512 tokens": 310_000, "16 rollouts of 4096 tokens": 5_000_000}
"""Arrow bytes of a group with its top-8 log-probs."""
ROUNDS, SECONDS_PER_ROUND = 5, 0.6


def main(folder: Path) -> None:
    print(f"{folder}: median of {ROUNDS} interleaved rounds\n")
    print(f"{'group':28} {'MB':>5} {'slots/s':>9} {'write+fsync/s':>14} {'ratio':>6} {'ms/slot':>8}")
    for name, num_bytes in GROUP_BYTES.items():
        slots, writes = measure(folder / str(num_bytes), random.Random(0).randbytes(num_bytes))
        print(f"{name:28} {num_bytes / 1e6:5.2f} {slots:9.0f} {writes:14.0f} {slots / writes:6.2f} {1000 / slots:8.1f}")


def measure(folder: Path, data: bytes) -> tuple[float, float]:
    """Slots, and bare writes, per second."""
    topic = Topic(LocalFilesystem(folder), "groups")
    slots, writes = [], []
    for turn in range(ROUNDS):
        slots.append(rate(lambda number: topic.publish(number, data), turn * 10**6))
        writes.append(rate(lambda number: write(folder / f"plain{number}", data), turn * 10**6))
    return statistics.median(slots), statistics.median(writes)


def rate(act: Callable[[int], object], first: int) -> float:
    """Calls per second."""
    began, number = time.perf_counter(), first
    while (elapsed := time.perf_counter() - began) < SECONDS_PER_ROUND:
        act(number)
        number += 1
    return (number - first) / elapsed


def write(path: Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


if __name__ == "__main__":
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="agrpo-bench-", dir=parent) as folder:
        main(Path(folder))
