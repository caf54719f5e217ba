"""What a stage prints: kept in a log file that cannot grow without end, with the last lines at hand."""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

logger = logging.getLogger(__name__)

ROTATE_BYTES = 50 * 2**20
KEPT_FILES = 3
LAST_LINES = 30
LONGEST_LINE = 65_536
"""Bytes. What prints on without a line break is broken here."""
LATE_SECONDS = 1.0
"""How long an ended stage's output is still read, in case a process that outlived it goes on printing."""


class LogFile:
    """A file of lines; the full ones are kept as `NAME.1` (newest) to `NAME.3`."""

    def __init__(self, path: Path, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path = path
        self.rotate_bytes = rotate_bytes
        self._file: BinaryIO | None = self._opened()

    def write(self, line: bytes) -> None:
        """Append one line. A log that cannot be written is given up with a warning: the stage must not wait for it."""
        if self._file is None:
            return
        try:
            self._file.write(line + b"\n")
            if self._file.tell() >= self.rotate_bytes:
                self._rotate()
        except OSError as error:
            logger.warning("no more lines are kept in %s: %s; free the space or the path", self.path, error)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _opened(self) -> BinaryIO:
        return open(self.path, "ab", buffering=0)

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT_FILES - 1, 0, -1):
            older = self._kept(number)
            if older.exists():
                older.replace(self._kept(number + 1))
        self.path.replace(self._kept(1))
        self._file = self._opened()

    def _kept(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class StageOutput:
    """Reads the pipe a stage prints into, in a thread of its own, until `finish`."""

    def __init__(self, stream: IO[bytes], log: LogFile, on_line: Callable[[str], None] | None = None) -> None:
        self._stream = stream
        self._log = log
        self._on_line = on_line
        self._rest = b""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._overheard: list[str] | None = None
        self._lock = threading.Lock()
        self._stage_ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"output of {log.path.name}", daemon=True)
        self._thread.start()

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """The newest lines, oldest first; blank ones are left out."""
        with self._lock:
            return list(self._last)[-count:]

    def overhear(self) -> list[str]:
        """A list to which every line from now on is added."""
        with self._lock:
            self._overheard = []
            return self._overheard

    def finish(self) -> None:
        """Read what the ended stage has left, and close the pipe and the log."""
        self._stage_ended.set()
        self._thread.join(2 * LATE_SECONDS)
        if self._thread.is_alive():
            logger.warning("on_line has not returned; the last lines of %s are not heard", self._log.path)

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream, selectors.EVENT_READ)
            late: float | None = None
            while late is None or time.monotonic() < late:
                if late is None and self._stage_ended.is_set():
                    late = time.monotonic() + LATE_SECONDS
                if selector.select(0.0 if late else 0.2):
                    chunk = os.read(self._stream.fileno(), LONGEST_LINE)
                    if not chunk:
                        break
                    self._take(chunk)
                elif late:
                    break
        if self._rest:
            self._line(self._rest)
        self._stream.close()
        self._log.close()

    def _take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) >= LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        self._log.write(line)
        # A progress bar redraws its line with carriage returns: only the last drawing is news.
        text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
        if not text:
            return
        with self._lock:
            self._last.append(text)
            if self._overheard is not None:
                self._overheard.append(text)
        if self._on_line is not None:
            self._tell(self._on_line, text)

    def _tell(self, on_line: Callable[[str], None], text: str) -> None:
        try:
            on_line(text)
        except Exception:
            # The pipe must be read on, or the stage would stand still at its next print.
            logger.exception("on_line failed and is not called again; %s has every line", self._log.path)
            self._on_line = None
