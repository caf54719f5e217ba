"""`compute_advantages` of the run's rollout loop, in the learner: for every scored group of a step, dropped ones included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from agrpo.config import RunConfig
from agrpo.errors import AgrpoError, HookError
from agrpo.records.group import RolloutGroup
from agrpo.records.score import ScoredGroup
from agrpo.rollout_loop import AsyncRolloutLoop
from agrpo.rollout_loop.finding import build_loop, loop_class, overrides
from agrpo.stages.rendering import Renderer


class AdvantageHook:
    """Where a run has one, the learner reads whole groups of what it drops as well."""

    def __init__(self, path: str | None, loop: AsyncRolloutLoop) -> None:
        self._path = path
        self._loop = loop

    @classmethod
    def of(cls, config: RunConfig) -> AdvantageHook | None:
        """None: the run's loop does not compute advantages itself. Raises `HookError`."""
        if not overrides(loop_class(config.rollout_loop), "compute_advantages"):
            return None
        return cls(config.rollout_loop.path, build_loop(config, Renderer(config.model).tokenizer))

    def __call__(self, consumed: Iterable[ScoredGroup], groups: dict[int, RolloutGroup]) -> dict[int, np.ndarray]:
        """float32 `[G]` by ticket, 0 where nothing was scored. `groups`: every consumed one that has rollouts."""
        return {scored.ticket: self._advantages(scored, groups[scored.ticket]) for scored in consumed if scored.rewards}

    def _advantages(self, scored: ScoredGroup, group: RolloutGroup) -> np.ndarray:
        rewards = np.asarray(scored.rewards, dtype=np.float64)
        where = f"{self._path}: compute_advantages, ticket {group.ticket} (row {group.row_index}),"
        try:
            found: Any = self._loop.compute_advantages(replace(group, rewards=rewards.copy()))
        except AgrpoError:
            raise
        except Exception as error:
            raise HookError(
                f"{where} raised {type(error).__name__}: {error}. Mend the hook, then `agrpo resume` this run"
            ) from error
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu" or found.shape != rewards.shape:
            told = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
            raise HookError(
                f"{where} gave {told}; expected a numpy array of {len(rewards)} floats, one for each rollout"
            )
        known = ~np.isnan(rewards)
        if not np.isfinite(found[known]).all():
            raise HookError(
                f"{where} gave {found.tolist()} for the rewards {rewards.tolist()}; expected a finite number wherever there is a "
                "reward"
            )
        return np.where(known, found, 0.0).astype(np.float32)
