"""What passes between scorer, template and child: numbered frames of bytes over a pipe.

Groups go in as pickles. Answers come back as JSON, so that no text a reward runs can reach the scorer through a pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from agrpo.records.score import Extra
from agrpo.rewards.sandbox.limits import Limits

_HEADER = struct.Struct(">QQ")

SETUP = 0
"""Number of the first frame in each direction. Calls count from 1; an empty frame calls one off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a template is told first."""

    name: str
    settings: dict[str, Any]
    limits: Limits
    sys_path: list[str]
    """The scorer's own, so that both import the same modules."""
    python_path: str | None
    """PYTHONPATH of the scorer, for what the reward starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a template answers first."""

    problem: str | None = None
    """Why the reward cannot be loaded."""
    is_async: bool = False
    whole_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one call."""

    values: list[float | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    """Why a value is missing. One entry per completion, as `values`."""
    extras: dict[str, list[Extra]] = field(default_factory=dict[str, "list[Extra]"])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """What was noted: as of `Notes`."""
    failure: str | None = None
    """Why there are no values at all."""
    overdue: bool = False
    """Whether the call failed by the clock."""
    unforeseen: bool = False
    """Whether it raised what agrpo does not: nobody knows in what state that left its process."""


def to_bytes(record: Loaded | Answer) -> bytes:
    """The record as JSON."""
    return json.dumps(asdict(record)).encode()


def frame(number: int, body: bytes) -> bytes:
    """The body behind its number and length."""
    return _HEADER.pack(number, len(body)) + body


class Frames:
    """Puts frames together from whatever pieces a pipe gives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are now whole, as number and body."""
        self._data += data
        while len(self._data) >= _HEADER.size:
            number, length = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_HEADER.size : end])
            del self._data[:end]
            yield number, body
