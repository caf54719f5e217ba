"""How long a run is: the prompts it asks, and the step it ends with."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.config import RunConfig


@dataclass(frozen=True, slots=True)
class Extent:
    """As `[stop]` says."""

    config: RunConfig
    prompts_per_epoch: int

    @property
    def num_prompts(self) -> int | None:
        """Prompts of the whole run, where epochs bound it."""
        if self.config.stop.max_steps is not None or self.config.stop.epochs is None:
            return None
        return self.config.stop.epochs * self.prompts_per_epoch

    @property
    def horizon(self) -> int | None:
        """Optimizer steps that a decaying schedule ends at; None where they cannot be counted."""
        return self.config.num_steps(self.prompts_per_epoch)

    def is_last(self, step: int) -> bool:
        """Whether no step comes after it."""
        return self.config.stop.max_steps is not None and step >= self.config.stop.max_steps
