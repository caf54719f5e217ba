"""The learner, killed before and after each of its writes: the next one finishes the run that would have been.

Nothing is written between the end of one write and the beginning of the next, so killing before each write, and after the
last, is killing between each two. The slow tests take both sides of every write, and kill the successor too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.queue.filesystems import ABANDONED_SECONDS
from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.run_folder import RunFolder
from tests.protocol.crash_table import assert_found, left_behind
from tests.protocol.learners import STEPS, TABLES, Outcome, consumed, fill, learn, outcome
from tests.protocol.stopping import Killed, Place, Side, Stores, Writer

Begin = Callable[..., RunFolder]


def writes_of(step: int) -> list[tuple[str, str]]:
    """What attempt 0 writes for a step, in order, as patterns of keys."""
    removed = [("delete", f"weights/{step - 2:08d}-.*")] if step >= 2 else []
    old = [("delete", f"checkpoints/{step - 2:08d}-000000")] if step >= 2 else []
    return [
        ("put", f"steps/000000/{step:08d}.plan.json"),
        ("put", f"steps/000000/{step:08d}.tokens.arrow"),
        ("put", f"steps/000000/{step:08d}.done.json"),
        ("put_folder", f"weights/{step:08d}-.*"),
        ("put", f"versions/000000/{step:08d}.json"),
        *removed,
        ("put", f"events/learner-.*/{2 * step:08d}.json"),
        ("put_folder", f"checkpoints/{step:08d}-000000"),
        ("put", f"events/learner-.*/{2 * step + 1:08d}.json"),
        *old,
    ]


BEGINNING = [
    ("put", "attempts/000000.json"),
    ("put_folder", "checkpoints/00000000-000000"),
    ("put", "events/learner-.*/00000000.json"),
    ("put", "bases/000000.json"),
    ("put_folder", "weights/00000000-.*"),
    ("put", "versions/000000/00000000.json"),
    ("put", "events/learner-.*/00000001.json"),
]
ENDING = [
    ("delete", "model"),
    ("put_folder", "model"),
    ("put", f"events/learner-.*/{2 * STEPS + 2:08d}.json"),
]
WRITES = [*BEGINNING, *(write for step in range(1, STEPS + 1) for write in writes_of(step)), *ENDING]
MIDDLE = [*(Place(*write, Side.BEFORE) for write in writes_of(2)), Place(*writes_of(2)[-1], Side.AFTER)]
EVERY = [Place(*write, side) for write in WRITES for side in Side]


BEFORE_DONE = Place("put", "steps/000000/00000002.done.json", Side.BEFORE)
BEFORE_VERSION = Place("put", "versions/000000/00000002.json", Side.BEFORE)


@pytest.fixture(scope="module")
def known() -> list[Outcome]:
    return []


@pytest.fixture
def expected(known: list[Outcome], begin_in_memory: Begin, stores: Stores) -> Outcome:
    """Of the run that was never killed."""
    if not known:
        folder = fill(begin_in_memory())
        learn(folder, stores)
        known.append(outcome(folder))
    return known[0]


def killed(folder: RunFolder, stores: Stores, place: Place) -> RunFolder:
    with pytest.raises(Killed, match=re.escape(f"killed {place}")):
        learn(folder, stores, Writer(killed_at=place))
    return folder


def test_the_list_of_writes_is_what_a_learner_writes(begin_in_memory: Begin, stores: Stores):
    writer = learn(fill(begin_in_memory()), stores)
    assert [kind for kind, _ in writer.writes] == [kind for kind, _ in WRITES]
    for (_, key), (_, pattern) in zip(writer.writes, WRITES, strict=True):
        assert re.fullmatch(pattern, key)


def _finishes(place: Place, begin: Begin, stores: Stores, expected: Outcome) -> None:
    folder = killed(fill(begin()), stores, place)
    left = left_behind(folder)
    learn(folder, stores)
    assert outcome(folder) == expected
    assert consumed(folder) == list(range(2 * STEPS))
    assert_found(folder, left)


@pytest.mark.parametrize("place", MIDDLE, ids=str)
def test_killed_in_the_middle_of_a_run(place: Place, begin_in_memory: Begin, stores: Stores, expected: Outcome):
    _finishes(place, begin_in_memory, stores, expected)


@pytest.mark.slow
@pytest.mark.parametrize("place", EVERY, ids=str)
def test_killed_at_any_write(place: Place, begin_in_memory: Begin, stores: Stores, expected: Outcome):
    _finishes(place, begin_in_memory, stores, expected)


@pytest.mark.slow
@pytest.mark.parametrize("first", [BEFORE_DONE, BEFORE_VERSION], ids=str)
def test_killed_again_at_any_write_of_the_recovery(
    first: Place, begin_in_memory: Begin, stores: Stores, expected: Outcome
):
    recovery = learn(killed(fill(begin_in_memory()), stores, first), stores)
    for kind, key in recovery.writes:
        pattern = re.sub("learner-[^/]*", "learner-.*", key)
        folder = killed(fill(begin_in_memory()), stores, first)
        killed(folder, stores, Place(kind, pattern, Side.BEFORE))
        learn(folder, stores)
        assert outcome(folder) == expected, f"killed {first}, then before {kind} {key}"
        assert consumed(folder) == list(range(2 * STEPS))


def test_what_a_dead_learner_left_unfinished_is_swept_and_published_whole(begin: Begin, stores: Stores):
    folder = killed(fill(begin(**TABLES)), stores, Place("put_folder", "weights/00000002-.*", Side.BEFORE))
    (unfinished,) = Path(folder.url, ".tmp").iterdir()
    assert [file.name for file in unfinished.iterdir()] == ["model.safetensors"]
    long_ago = time.time() - ABANDONED_SECONDS - 1
    for path in (unfinished / "model.safetensors", unfinished):
        os.utime(path, (long_ago, long_ago))
    learn(folder, stores)
    assert list(LocalFilesystem(Path(folder.url, ".tmp").parent).root.joinpath(".tmp").iterdir()) == []
    assert [name[:8] for name in folder.filesystem.list("weights")] == ["00000002", "00000003"]
