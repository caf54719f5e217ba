"""A process that publishes slots, folders and hints in one run folder until it is killed, and says what is confirmed.

    python store_writer.py FOLDER WRITER FIRST_NUMBER

Each confirmed number is one line on standard output: `slot N` or `folder N`.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import count
from pathlib import Path
from zlib import crc32

from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.topic import Topic

FILES = ("model", "optimizer", "deep/er")


def payload(writer: int, number: int, size: int) -> bytes:
    """`size` bytes after the name of their writer and number, then a checksum."""
    body = f"{writer} {number} ".encode() + random.Random(writer * 1_000_003 + number).randbytes(size)
    return body + crc32(body).to_bytes(4, "big")


def origin(data: bytes) -> tuple[int, int]:
    """The writer and number of a payload. Raises `ValueError` for a torn one."""
    if crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        raise ValueError(f"torn: {len(data)} bytes that begin with {data[:20]!r}")
    writer, number = data.split(b" ", 2)[:2]
    return int(writer), int(number)


def write_for_ever(root: Path, writer: int, first: int) -> None:
    """Publish number after number, from `first` on."""
    store = LocalFilesystem(root)
    for number in count(first):
        large, small = payload(writer, number, 600_000 * (1 + number % 3)), payload(writer, number, 3000)
        if Topic(store, "groups").publish(number, large):
            os.write(1, f"slot {number}\n".encode())
        store.put("hint/learner.json", small, exclusive=False)
        folder = store.scratch()
        (folder / "deep").mkdir()
        for name in FILES:
            (folder / name).write_bytes(small)
        if store.put_folder(f"weights/{number}", folder):
            os.write(1, f"folder {number}\n".encode())


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
