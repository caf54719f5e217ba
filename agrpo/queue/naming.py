"""Names in a run folder: which of them are agrpo's. Any other is left alone, and said once: someone put it there."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

logger = logging.getLogger(__name__)


def ours(names: Sequence[str], pattern: re.Pattern[str], where: str) -> list[str]:
    """Those of the names that match the whole pattern. `where` they were listed: what the log calls the others."""
    found = [name for name in names if pattern.fullmatch(name)]
    if len(found) < len(names):
        _say(sorted(set(names).difference(found)), where)
    return found


_said: set[str] = set()
"""Paths that this process has told of."""


def _say(foreign: list[str], where: str) -> None:
    new = [path for name in foreign if (path := f"{where}/{name}") not in _said]
    _said.update(new)
    for path in new:
        logger.warning("%s is none of agrpo's names: it is not read, and left where it is", path)
