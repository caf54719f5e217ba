"""`compute_advantages` of the run's rollout loop, in the learner: for every scored group of a step, dropped ones included."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from agrpo.config import RunConfig
from agrpo.environments import load_environments
from agrpo.errors import AgrpoError, HookError, words_of
from agrpo.records.group import RolloutGroup
from agrpo.records.score import ScoredGroup
from agrpo.rollout_loop import AsyncRolloutLoop
from agrpo.rollout_loop.finding import build_loop, loop_class, overrides
from agrpo.stages.rendering import Renderer


class AdvantageHook:
    """Where a run has one, the learner reads whole groups of what it drops as well."""

    def __init__(self, path: str | None, loop: AsyncRolloutLoop, environments: Mapping[str, type]) -> None:
        """`environments`: the run's classes, by their names."""
        self._path = path
        self._loop = loop
        self._environments = environments

    @classmethod
    def of(cls, config: RunConfig) -> AdvantageHook | None:
        """None: the run's loop does not compute advantages itself. Raises `HookError`."""
        if not overrides(loop_class(config.rollout_loop), "compute_advantages"):
            return None
        loop = build_loop(config, Renderer(config.model).tokenizer)
        kinds = load_environments(config.environments).values()
        return cls(config.rollout_loop.path, loop, {kind.class_name: kind.cls for kind in kinds})

    def __call__(self, consumed: Iterable[ScoredGroup], groups: dict[int, RolloutGroup]) -> dict[int, np.ndarray]:
        """float32 `[G]` by ticket, 0 where nothing was scored. `groups`: every consumed one that has rollouts."""
        return {scored.ticket: self._advantages(scored, groups[scored.ticket]) for scored in consumed if scored.rewards}

    def _told(self, group: RolloutGroup, rewards: np.ndarray) -> RolloutGroup:
        """The group as the hook may have it: what it changes there is its own."""
        paid = [
            None
            if rollout.stay is None or rollout.stay.reward is None
            else (self._environments[rollout.stay.environment], rollout.stay.reward)
            for rollout in group.rollouts
        ]
        return replace(group, rollouts=[*group.rollouts], rewards=rewards.copy(), env_rewards=paid)

    def _advantages(self, scored: ScoredGroup, group: RolloutGroup) -> np.ndarray:
        rewards = np.asarray(scored.rewards, dtype=np.float64)
        where = f"{self._path}: compute_advantages, ticket {group.ticket} (row {group.row_index}),"
        try:
            found: Any = self._loop.compute_advantages(self._told(group, rewards))
        except AgrpoError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt, CancelledError) as error:
            raise HookError(f"{where} raised {words_of(error)}. Mend the hook, then `agrpo resume` this run") from error
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu" or found.shape != rewards.shape:
            told = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
            raise HookError(
                f"{where} gave {told}; expected a numpy array of {len(rewards)} floats, one for each rollout"
            )
        known = ~np.isnan(rewards)
        with np.errstate(over="ignore"):
            values = np.where(known, found, 0.0).astype(np.float32)
        if not np.isfinite(values).all():
            raise HookError(
                f"{where} gave {found.tolist()} for the rewards {rewards.tolist()}; expected a finite number wherever there is a "
                "reward"
            )
        return values
