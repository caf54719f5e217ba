"""Tables of a rollout's page for a terminal: its rewards, its group, and lists of what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from agrpo.instruments.rollout_page.choosing import ChosenRollout, PromptGroup
from agrpo.instruments.rollout_page.completion import number, visible
from agrpo.instruments.rollout_page.facts import RewardFacts, RolloutFacts, RolloutPage

NAMED_CHARACTERS = 60
"""Of a completion, in a list."""


def reward_table(page: RolloutPage) -> Table:
    """One row per reward, then the total."""
    table = _table("reward", "weight>", "value>", "weighted>", "s of the group>", "error")
    for reward in page.rewards:
        seconds = f"{reward.duration_seconds:.3f}"
        table.add_row(
            reward.name, number(reward.weight), number(reward.value), _weighted(reward), seconds, _cell(reward.error)
        )
    assert page.rollout is not None, "a refused prompt has no rewards"
    if page.rollout.own_reward is not None:
        own = number(page.rollout.own_reward)
        table.add_row("(the rollout's own)", "1", own, own, "", "")
    total = "none" if page.rollout.reward is None else number(page.rollout.reward)
    table.add_row(Text("total", style="bold"), "", "", Text(total, style="bold"), "", "")
    return table


def group_table(rollouts: Sequence[RolloutFacts], marked: int | None) -> Table:
    """One row per rollout of a group; `marked`: the one that the page is about."""
    table = _table("", "#>", "reward>", "advantage>", "tokens>", "stop", "completion")
    for one in rollouts:
        table.add_row(
            "›" if one.rollout_index == marked else "",
            str(one.rollout_index),
            number(one.reward),
            "" if one.advantage is None else f"{one.advantage:+.3g}",
            str(one.num_completion_tokens),
            one.stop_reason + (" (dup)" if one.duplicate else ""),
            _beginning(one.completion_text, one.error),
        )
    return table


def chosen_table(rollouts: Sequence[ChosenRollout]) -> Table:
    """One row per chosen rollout."""
    table = _table("rollout", "step>", "became", "reward>", "tokens>", "stop", "completion")
    for one in rollouts:
        table.add_row(
            f"{one.ticket}" if one.rollout_index is None else f"{one.ticket}/{one.rollout_index}",
            "" if one.step is None else str(one.step),
            one.reason or one.status,
            number(one.reward),
            "" if one.num_completion_tokens is None else str(one.num_completion_tokens),
            one.stop_reason or "",
            _beginning(one.completion_text, one.error),
        )
    return table


def prompt_table(groups: Sequence[PromptGroup]) -> Table:
    """One row per group of a prompt, newest first."""
    names = ("ticket>", "epoch>", "step>", "became", "version>", "reward\nmean>", "std>", "tokens\nmean>", "different>")
    table = _table(*names)
    for one in groups:
        table.add_row(
            str(one.ticket),
            str(one.epoch),
            "" if one.step is None else str(one.step),
            one.reason or one.status,
            str(one.model_version),
            number(one.reward_mean, 3),
            number(one.reward_std, 3),
            number(one.mean_tokens, 3),
            f"{one.num_different} of {one.num_rollouts}" if one.num_rollouts else "no rollouts",
        )
    return table


def _table(*names: str) -> Table:
    """A table without lines; a name that ends with > is of numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1))
    for name in names:
        justify = "right" if name.endswith(">") else "left"
        last = name in ("completion", "error")
        table.add_column(
            name.removesuffix(">"), justify=justify, no_wrap=name != "error", overflow="ellipsis" if last else "fold"
        )
    return table


def _weighted(reward: RewardFacts) -> str:
    return "" if reward.value is None else number(math.prod((reward.weight, reward.value)))


def _beginning(text: str | None, error: str | None) -> Text:
    """The first characters of a completion in one line, or its error."""
    told = f"error: {error}" if error else text or ""
    line = visible(" ".join(told.split("\n")))
    return Text(line[:NAMED_CHARACTERS] + ("…" if len(line) > NAMED_CHARACTERS else ""))


def _cell(text: str | None) -> Text:
    return Text(visible(text or "").replace("↵\n", "\n"))
