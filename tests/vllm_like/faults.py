"""What goes wrong, and when. Set by a test or over `POST /faults`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

GENERATE = "/inference/v1/generate"


class Do(StrEnum):
    """What happens to a request instead of its answer."""

    HANG = "hang"
    """No answer until the client goes."""
    DROP = "drop"
    """The connection is reset."""
    DIE = "die"
    """The whole server ends: its connections are reset and its port is closed."""
    STATUS = "status"
    """`status`, with `text` in an error as the server words them."""
    HTML = "html"
    """A web page, with `status`."""
    HALF_JSON = "half_json"
    """Half of the true answer, as if it were all."""
    CUT = "cut"
    """Half of the true answer, then the end of the connection."""
    DELAY = "delay"
    """The true answer, `seconds` late, or as soon as the faults are cleared."""
    CHOICES = "choices"
    """`number` choices instead of one."""
    FEW_LOGPROBS = "few_logprobs"
    """Log-probs for all tokens but the last."""
    NO_LOGPROBS = "no_logprobs"
    LABEL = "label"
    """`text` for the label of the weights."""
    OLD_WEIGHTS = "old_weights"
    """A reload that is answered and not done."""
    CHANGE = "change"
    """The true answer as `change` makes it."""
    WITHOUT = "without"
    """The answer lacks the field `text` of its choice, or of itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Happens to requests of `path` from the `first` one on that it meets, `times` times."""

    do: Do
    path: str = GENERATE
    first: int = 1
    times: int | None = 1
    """None: to all that come."""
    seed: int | None = None
    """Only to requests with this sampling seed."""
    late: bool = False
    """What was asked is done all the same, before the fault (hang, drop, die, status, html)."""
    status: int = 500
    text: str = ""
    number: int = 0
    seconds: float = 0.0
    change: Callable[[Any], Any] | None = None
    """Given the JSON, it gives another one."""

    @staticmethod
    def of(document: Mapping[str, Any]) -> Fault:
        return Fault(**{**document, "do": Do(document["do"])})


@dataclass(kw_only=True)
class Faults:
    """Those that are set, and how often each was met."""

    _set: list[Fault] = field(default_factory=list)
    _met: dict[int, int] = field(default_factory=dict)

    def add(self, fault: Fault) -> None:
        self._set.append(fault)

    def has(self, fault: Fault) -> bool:
        """Whether it is set still."""
        return fault in self._set

    def clear(self) -> None:
        self._set.clear()
        self._met.clear()

    def meet(self, path: str, body: Any) -> Fault | None:
        """The fault that this request is to suffer."""
        for place, fault in enumerate(self._set):
            if fault.path != path or (fault.seed is not None and fault.seed != _seed(body)):
                continue
            met = self._met[place] = self._met.get(place, 0) + 1
            if fault.first <= met and (fault.times is None or met < fault.first + fault.times):
                return fault
        return None


def _seed(body: Any) -> int | None:
    if not isinstance(body, dict):
        return None
    return body.get("sampling_params", body).get("seed")
