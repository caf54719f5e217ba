"""A prompt: what the policy is asked, and what the rewards need to know to judge the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""One chat message, with at least the keys `role` and `content`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question to the policy."""

    id: str
    """Hash of the content, so the same question has the same id in every epoch and run."""
    messages: list[Message]
    facts: dict[str, Any] = field(default_factory=dict)
    """The row's other columns; rewards receive each as a keyword."""
    environment: str | None = None
    """The environment a multi-turn rollout acts in; None where there is none."""
    row_index: int = 0
    """Row of the dataset."""
    epoch: int = 0
    """Passes over the dataset before this one."""


def prompt_id(messages: list[Message], facts: Mapping[str, Any], environment: str | None) -> str:
    """32 hex digits that name this content."""
    content = json.dumps([messages, facts, environment], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(content.encode(errors="replace"), digest_size=16).hexdigest()
