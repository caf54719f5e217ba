"""Easy rows first: a rollout loop that asks rows of higher levels from epoch to epoch, and the reward of their answers."""

from __future__ import annotations

import re
from typing import Any

from agrpo import AsyncRolloutLoop


class Curriculum(AsyncRolloutLoop):
    """Rows of level 1 at first, and every `epochs_per_level` epochs those of one level more."""

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        """The column `level` decides. Where a run stands is known by the epoch alone, so that a resume asks the same."""
        return row["level"] <= 1 + epoch // self.settings.epochs_per_level


def right_sum(completions: list[list[dict[str, Any]]], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last number of an answer is the sum."""
    numbers = [re.findall(r"-?\d+", messages[-1]["content"]) for messages in completions]
    return [float(found[-1:] == [right]) for found, right in zip(numbers, answer, strict=True)]
