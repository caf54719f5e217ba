"""How fast groups pass from one process to another through a topic, beside a pickled queue and beside the bare disk.

    python benchmarks/queue_throughput.py                    in the system's temporary folder
    python benchmarks/queue_throughput.py --folder /mnt/run  on the disk that is to hold runs

A group travels as the object it is: into Arrow, into a slot that outlives a loss of power, out of the mapped slot, back
into an object. `multiprocessing.Queue` pickles the same object and keeps nothing. `write, fsync, rename` is what any
queue on this disk pays at least for the same bytes. Rates: the producer never rests. Latency: from before the put to
after the get, at a pace the consumer keeps up with; it polls every 2 ms. All ways take turns in one run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path
from uuid import uuid4

from stand.runs import load_average
from stand.tables import bar, print_table

from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.topic import Topic
from agrpo.records.arrow import group_from_arrow, group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, TurnRecord

SHAPES = {"8 rollouts of 20 tokens": (8, 20), "16 rollouts of 1024 tokens": (16, 1024)}
POLL_SECONDS = 0.002
PACED = 50
"""Groups whose latency is measured, per turn."""
processes = multiprocessing.get_context("spawn")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One way to pass groups, over its rounds."""

    per_second: list[float]
    latencies: list[float]
    """Seconds; none where nothing is passed on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where to put the topic (the system's temporary folder)")
    parser.add_argument("--rounds", type=int, default=2, help="turns that each way takes (2)")
    parser.add_argument("--groups", type=int, default=150, help="groups per turn (150)")
    parser.add_argument("--pace", type=float, default=25.0, help="groups a second while latency is measured (25)")
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="agrpo-bench-", dir=arguments.folder) as folder,
        bar("queue", len(SHAPES) * len(WAYS) * arguments.rounds) as progress,
    ):
        for shape, (num_rollouts, num_tokens) in SHAPES.items():
            group = make_group(num_rollouts, num_tokens)
            found = {name: Measured(per_second=[], latencies=[]) for name in WAYS}
            for _ in range(arguments.rounds):
                for name, way in WAYS.items():
                    way(found[name], Path(folder), group, arguments.groups, arguments.pace)
                    progress.advance(f"{shape}: {name}")
            size = group_to_arrow(group).size / 1e6
            rows += [row(f"{shape} ({size:.2f} MB)", name, one, found[PLAIN]) for name, one in found.items()]
    print(f"{arguments.folder or tempfile.gettempdir()}, {load_average()}\n")
    print_table(["group", "way", "groups/s", "of the disk's", "put to get ms, p50", "p99"], rows)


def row(shape: str, name: str, measured: Measured, plain: Measured) -> list[str]:
    """One line of the table; the p99 of a few dozen is their worst but one."""
    rate, bare = statistics.median(measured.per_second), statistics.median(plain.per_second)
    late = sorted(measured.latencies)
    shown = [f"{1000 * late[int(share * (len(late) - 1))]:.1f}" for share in (0.5, 0.99)] if late else ["", ""]
    return [shape, name, f"{rate:.0f}", f"{rate / bare:.2f}", *shown]


def make_group(num_rollouts: int, num_tokens: int) -> RolloutGroup:
    """A group of random tokens, with a log-prob for each."""
    draw = random.Random(0)
    outputs = [[draw.randrange(50_000) for _ in range(num_tokens)] for _ in range(num_rollouts)]
    return RolloutGroup(
        ticket=0,
        prompt=Prompt(id="p", messages=[{"role": "user", "content": "1+2-3="}]),
        rollouts=[
            Rollout(
                completion=[{"role": "assistant", "content": "x" * num_tokens}],
                completion_ids=ids,
                turns=[TurnRecord(prompt_ids=ids[:22], output_ids=ids, output_log_probs=[draw.random() for _ in ids])],
                index=index,
            )
            for index, ids in enumerate(outputs)
        ],
        model_version=0,
    )


def through_topic(found: Measured, folder: Path, group: RolloutGroup, count: int, pace: float) -> None:
    """A topic, from this process to another one."""
    place = folder / uuid4().hex
    topic = Topic(LocalFilesystem(place), "groups")
    _pass(found, lambda number: topic.publish(number, group_to_arrow(group)), partial(read_topic, place), count, pace)


def through_pickle(found: Measured, folder: Path, group: RolloutGroup, count: int, pace: float) -> None:
    """Python's own queue between processes."""
    queue: Queue[RolloutGroup] = processes.Queue()
    _pass(found, lambda _: queue.put(group), partial(read_queue, queue), count, pace)


def bare_disk(found: Measured, folder: Path, group: RolloutGroup, count: int, pace: float) -> None:
    """Bytes written, confirmed and given their name."""
    data, place = group_to_arrow(group), folder / uuid4().hex
    place.mkdir()
    began = time.perf_counter()
    for number in range(count):
        with open(place / "unfinished", "wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        os.rename(place / "unfinished", place / str(number))
    found.per_second.append(count / (time.perf_counter() - began))


PLAIN = "write, fsync, rename"
WAYS: dict[str, Callable[[Measured, Path, RolloutGroup, int, float], None]] = {
    "topic": through_topic,
    "multiprocessing.Queue": through_pickle,
    PLAIN: bare_disk,
}


def _pass(
    found: Measured, put: Callable[[int], object], read: Callable[[int, Connection], None], count: int, pace: float
) -> None:
    """Pass `count` groups as fast as they go, then some at a pace, to a process that says when each arrived."""
    told, child = processes.Pipe()
    consumer = processes.Process(target=read, args=(count, child))
    consumer.start()
    told.recv()
    began = time.perf_counter()
    for number in range(count):
        put(number)
    arrived: list[float] = told.recv()
    found.per_second.append(count / (arrived[-1] - began))
    sent: list[float] = []
    for number in range(count, count + PACED):
        time.sleep(1 / pace)
        sent.append(time.perf_counter())
        put(number)
    found.latencies.extend(got - gave for got, gave in zip(told.recv(), sent, strict=True))
    consumer.join()


def read_topic(folder: Path, count: int, told: Connection) -> None:
    """The consumer of a topic. Its clock is the producer's: the kernel's monotonic one."""
    topic = Topic(LocalFilesystem(folder), "groups")

    def get(number: int) -> None:
        while (data := topic.read(number)) is None:
            time.sleep(POLL_SECONDS)
        group_from_arrow(data)

    _tell_arrivals(get, count, told)


def read_queue(queue: Queue[RolloutGroup], count: int, told: Connection) -> None:
    """The consumer of a pickled queue."""
    _tell_arrivals(lambda _: queue.get(), count, told)


def _tell_arrivals(get: Callable[[int], object], count: int, told: Connection) -> None:
    told.send("ready")
    for first, last in ((0, count), (count, count + PACED)):
        arrived: list[float] = []
        for number in range(first, last):
            get(number)
            arrived.append(time.perf_counter())
        told.send(arrived)


if __name__ == "__main__":
    main()
