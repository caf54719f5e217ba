"""How far a run is, as a reward may know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """How far the policy that wrote a group was (G-184). It never depends on when the group was judged."""

    global_step: int = 0
    """Optimizer steps that made the weights of the group's first sampled token."""
    max_steps: int | None = None
    """Steps of the whole run. None: they cannot be counted."""
    epoch: float = 0.0
    """Passes over the dataset before the one that asks this prompt. Whole."""
    num_train_epochs: int | None = None
    """Passes that the run makes (`stop.epochs`). None: steps alone end it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f'trainer_state has no "{name}"; it has global_step, max_steps, epoch and num_train_epochs: rewards run beside '
            "the learner and know no more of it"
        )
