"""What both sides of `against_trl` are asked, and the reward that both are given: stories, paid by their different words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NUM_PROMPTS = 64


def distinct_words(completions: list[list[dict[str, Any]]], **_: Any) -> list[float]:
    """How many different words each completion has: seldom two of a group have as many."""
    return [float(len(set((messages[0]["content"] or "").split()))) for messages in completions]


def write_prompts(file: Path) -> Path:
    """Questions whose answers never end within a few dozen tokens, one JSON object a line."""
    asked = [f"Write a long story number {number} about a fox and a river." for number in range(NUM_PROMPTS)]
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in asked]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file
