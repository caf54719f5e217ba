"""The rollout loop: what becomes of a prompt, as six hooks that a class of yours may override (A-209 to A-221).

`AsyncRolloutLoop` is what a run does without one. A subclass is named in the run's file:

    [rollout_loop]
    path = "my_loop:MyLoop"

Per prompt the order is `filter_prompt`, `generate_one` once for each rollout (each turn through `generate_one_turn`), the
rewards, `compute_advantages`, the drop test. All but `compute_advantages` run in the generator's process, that one in the
learner's; each process has an object of its own. docs/hooks.md is the page for users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agrpo.errors import HookError
from agrpo.rollout_loop.under_way import rollout_under_way

if TYPE_CHECKING:
    import numpy as np

    from agrpo.config import RunConfig
    from agrpo.records.group import RolloutGroup
    from agrpo.records.prompt import Message
    from agrpo.records.rollout import Rollout, TurnRecord


class AsyncRolloutLoop:
    """What becomes of a prompt. Subclass it at the top of a module and override the hooks that you want otherwise.

    It is built where it works, once per process: a generator that is started again builds another. Keep nothing in it that
    a run may not lose.
    """

    def __init__(self, *, config: RunConfig, model_name: str, processing_class: Any) -> None:
        """Clients and connections are made in `setup`, not here: the learner builds one too, for its advantages."""
        self.config = config
        """The run's settings, checked."""
        self.settings = LoopSettings(config.rollout_loop.settings)
        """Yours: the values of `[rollout_loop.settings]` as attributes."""
        self.model_name = model_name
        """`model.path` of the run."""
        self.tokenizer = processing_class
        """The model's, as transformers loads it."""

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        """Whether the row is asked in this epoch. Called once per prompt, before anything is generated for it.

        `row` has all columns of the data set; `epoch` counts from 0. A row that is refused counts as consumed, and comes
        again in the next epoch. The generator waits meanwhile, so answer at once. Default: True.
        """
        return True

    async def generate_one(self, prompt: list[Message], tools: list[Callable[..., Any]], group_id: int = 0) -> Rollout:
        """One rollout of the prompt, `engine.num_generations` of them side by side. `group_id` is the group's ticket.

        Default: turns of the model and calls of its `tools` by turns, until it calls none or `max_tool_calling_iterations`
        is reached. It may be given other messages than the row's, and no other tools. One of yours lists every request that
        it made in `Rollout.turns`, in order, and may set `Rollout.reward`, which is added to those of the run.
        """
        return await rollout_under_way("generate_one").converse(self.generate_one_turn, prompt, tools)

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        """One request to the engine, with the run's temperature, `top_p`, `top_k`, `min_p` and `max_completion_length`.

        Its seed derives from (run seed, ticket, rollout, turn). Raises `agrpo.errors.PromptRefused` where the prompt leaves
        no room for a turn. What an engine does not answer ends the rollout as failed: let those exceptions pass.
        """
        return await rollout_under_way("generate_one_turn").ask(prompt_ids)

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        """One value per rollout `[G]`, once `group.rewards` is set (float64 `[G]`, NaN where nothing scored a rollout).

        Called in the learner for every scored group, those that are dropped afterwards too. It has to follow from the group
        alone: after a crash a group is asked again. Default: the run's `[advantage]`, of the summed rewards; where that looks
        at the other groups of a step too, it raises `HookError`.
        """
        from agrpo.records.group_rewards import GroupRewards

        assert group.rewards is not None, "rewards are set before advantages are computed"
        advantage = self.config.advantage
        if advantage.spans_step:
            raise HookError(
                f"the run's [advantage] ({self.config.settings.tree['advantage']}) is made of all groups of a step, and "
                'compute_advantages sees one; set advantage.name = "grpo" with scale = "group", or do not ask the default'
            )
        return advantage([GroupRewards.of_totals(group.rewards)])[0]

    async def setup(self) -> None:
        """Runs on the generator's loop before its first prompt; here clients are made. Default: nothing."""

    async def close(self) -> None:
        """Runs when the generator's loop stops, after an error too; only a killed process skips it. Default: nothing."""


class LoopSettings:
    """The values of `[rollout_loop.settings]`, as attributes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError` with the nearest name."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._values:
            from agrpo.registry import nearest

            told = nearest(name, list(self._values)) if self._values else "the table is empty"
            raise AttributeError(f"[rollout_loop.settings] has no {name}; {told}")
        return self._values[name]


__all__ = ["AsyncRolloutLoop", "LoopSettings"]
