"""The watchdog: hears the beats of a run's stages, and says which of them stands still.

A beat says what a stage waits for and for how long nothing has moved in it. A stage that waits for another one, and says
so, is not the one that hangs. What counts is how long a stage was listened to in vain, not what clocks say: while the
run's folder cannot be read, or this process was itself frozen, nobody is accused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agrpo.stages import KINDS, kind_of
from agrpo.stages.names import NO_WORK
from agrpo.stages.stage_process import StageProcess

logger = logging.getLogger(__name__)

LONGEST_LOOK_SECONDS = 5.0
LOOKS = 20
"""Within the shortest deadline."""
OWN_WORD_SECONDS = 15.0
"""A stage has a deadline of its own for what comes no further; it is told in the stage's own words where it can tell."""


class Watchdog:
    """Listens in a thread of its own while its block runs. Thread-safe."""

    def __init__(
        self, beats: Callable[[], Sequence[Mapping[str, Any]]], *, stall_seconds: float, idle_seconds: float
    ) -> None:
        """Listen to `beats`, as `RunFolder.beats` gives them.

        `stall_seconds`: longest silence of a stage. `idle_seconds`: longest work of which nothing comes, as it says itself.
        """
        self._beats = beats
        self._stall_seconds = stall_seconds
        self._idle_seconds = idle_seconds + OWN_WORD_SECONDS
        self._look_seconds = min(LONGEST_LOOK_SECONDS, stall_seconds / LOOKS, idle_seconds / LOOKS)
        self._heard: dict[str, _Heard] = {}
        self._newest: dict[str, float] = {}
        """The time that the newest beat of each stage bears, whichever incarnation it was."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._deaf = False
        self._thread = threading.Thread(target=self._listen, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._take(self._beats_if_any(), 0.0)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(self._look_seconds)

    def watch(self, stage: StageProcess) -> None:
        """From now on listen to this incarnation; an earlier one's last beat is not its word."""
        with self._lock:
            self._heard[stage.name] = _Heard(said_at=self._newest.get(stage.name))

    def verdict(self, stage: StageProcess) -> str | None:
        """Why it is taken to stand still, to follow its name; None: it is not."""
        with self._lock:
            heard = self._heard[stage.name]
            if heard.silent_seconds > self._stall_seconds and (heard.has_spoken or kind_of(stage.name) in KINDS):
                return f"said nothing for {heard.silent_seconds:.0f} s, more than supervision.stall_seconds; {heard.last_word}"
            if heard.waiting_for is None and heard.idle_seconds > self._idle_seconds:
                return (
                    f"works and came no further for {heard.idle_seconds:.0f} s, more than stop.stall_seconds; "
                    f"{heard.last_word}"
                )
        return None

    def worked_seconds(self, stage: StageProcess) -> float:
        """How long it was at work, from its first word to what moved in it last. A replay, or the start of a server, is no work."""
        with self._lock:
            heard = self._heard[stage.name]
            return max(0.0, heard.spoken_seconds - heard.idle_seconds)

    def _listen(self) -> None:
        looked_at = time.monotonic()
        while not self._ended.wait(self._look_seconds):
            beats = self._beats_if_any()
            now = time.monotonic()
            # A longer gap was spent in a store that did not answer, or frozen: the stages may have been as well.
            passed, looked_at = min(now - looked_at, 2 * self._look_seconds), now
            self._take(beats, passed)

    def _take(self, beats: dict[str, Mapping[str, Any]] | None, passed: float) -> None:
        if beats is None:
            return
        with self._lock:
            self._newest |= {name: beat["at"] for name, beat in beats.items()}
            for name, heard in self._heard.items():
                heard.listen(beats.get(name), passed)

    def _beats_if_any(self) -> dict[str, Mapping[str, Any]] | None:
        try:
            beats = {beat["stage"]: beat for beat in self._beats()}
        except Exception as error:
            if not self._deaf:
                logger.warning(
                    "the stages cannot be heard, and none is taken to stand still meanwhile: %s: %s",
                    *(type(error).__name__, error),
                )
            self._deaf = True
            return None
        self._deaf = False
        return beats


@dataclass(kw_only=True, slots=True)
class _Heard:
    """What one incarnation has said."""

    said_at: float | None
    """The time its newest beat bears: another time is another beat."""
    has_spoken: bool = False
    waiting_for: str | None = None
    waited_seconds: float = 0.0
    """As its newest beat says."""
    silent_seconds: float = 0.0
    """Since its newest beat, or its start."""
    spoken_seconds: float = 0.0
    """Since its first beat, but for its replay or its start."""

    @property
    def idle_seconds(self) -> float:
        return self.waited_seconds + self.silent_seconds

    @property
    def last_word(self) -> str:
        if not self.has_spoken:
            return "it has not spoken since its start"
        return f"its last word: {'at work' if self.waiting_for is None else f'waiting for {self.waiting_for}'}"

    def listen(self, beat: Mapping[str, Any] | None, passed: float) -> None:
        """Take what lies there after so many seconds."""
        if self.has_spoken and self.waiting_for not in NO_WORK:
            self.spoken_seconds += passed
        self.silent_seconds += passed
        if beat is not None and beat["at"] != self.said_at:
            self.said_at, self.has_spoken, self.silent_seconds = beat["at"], True, 0.0
            self.waiting_for, self.waited_seconds = beat["waiting_for"], beat["waited_seconds"]
