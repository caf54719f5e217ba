"""Tables of a rollout's page for a terminal: its rewards, its group, and lists of what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from agrpo.instruments.rollout_page.choosing import ChosenRollout, PromptGroup
from agrpo.instruments.rollout_page.completion import number
from agrpo.instruments.rollout_page.facts import RewardFacts, RolloutFacts, RolloutPage
from agrpo.visible import harmless, visible

NAMED_CHARACTERS = 60
"""Of a completion, in a list."""

Cells = Sequence[str | Text]


def reward_table(page: RolloutPage) -> Table:
    """One row per reward, then the total."""
    assert page.rollout is not None, "a refused prompt has no rewards"
    rows: list[Cells] = [
        [
            reward.name,
            number(reward.weight),
            number(reward.value),
            _weighted(reward),
            f"{reward.duration_seconds:.3f}",
            harmless(reward.error or ""),
        ]
        for reward in page.rewards
    ]
    if page.rollout.own_reward is not None:
        own = number(page.rollout.own_reward)
        rows.append(["(the rollout's own)", "1", own, own, "", ""])
    total = "none" if page.rollout.reward is None else number(page.rollout.reward)
    rows.append([Text("total", style="bold"), "", "", Text(total, style="bold"), "", ""])
    return _table(["reward", "weight>", "value>", "weighted>", "s of the group>", "error"], rows, cut=False)


def extras_table(page: RolloutPage) -> Table:
    """One row for each value that a reward noted of the rollout."""
    rows: list[Cells] = [
        [one.reward, one.name, "none" if one.value is None else visible(one.value)] for one in page.extras
    ]
    return _table(["noted by", "column", "value"], rows, cut=False)


def group_table(rollouts: Sequence[RolloutFacts], marked: int | None) -> Table:
    """One row per rollout of a group; `marked`: the one that the page is about. Turns and calls, where there are several."""
    several = any(one.num_turns > 1 or one.tool_call_count for one in rollouts)
    rows: list[Cells] = [
        [
            "›" if one.rollout_index == marked else "",
            str(one.rollout_index),
            number(one.reward),
            "" if one.advantage is None else f"{one.advantage:+.3g}",
            str(one.num_completion_tokens),
            *([str(one.num_turns), _calls(one)] if several else []),
            one.stop_reason + (" (dup)" if one.duplicate else ""),
            _beginning(one.completion_text, one.error),
        ]
        for one in rollouts
    ]
    conversation = ["turns>", "calls>"] if several else []
    return _table(["", "#>", "reward>", "advantage>", "tokens>", *conversation, "stop", "completion"], rows)


def chosen_table(rollouts: Sequence[ChosenRollout]) -> Table:
    """One row per chosen rollout."""
    rows: list[Cells] = [
        [
            str(one.place),
            "" if one.step is None else str(one.step),
            one.reason or one.status,
            number(one.reward),
            "" if one.num_completion_tokens is None else str(one.num_completion_tokens),
            one.stop_reason or "",
            _beginning(one.completion_text, one.error),
        ]
        for one in rollouts
    ]
    return _table(["rollout", "step>", "became", "reward>", "tokens>", "stop", "completion"], rows)


def prompt_table(groups: Sequence[PromptGroup]) -> Table:
    """One row per group of a prompt, newest first."""
    rows: list[Cells] = [
        [
            str(one.ticket),
            str(one.epoch),
            "" if one.step is None else str(one.step),
            one.reason or one.status,
            str(one.model_version),
            number(one.reward_mean, 3),
            number(one.reward_std, 3),
            number(one.mean_tokens, 3),
            f"{one.num_different} of {one.num_rollouts}" if one.num_rollouts else "no rollouts",
        ]
        for one in groups
    ]
    means = ["reward\nmean>", "reward\nstd>", "tokens\nmean>"]
    return _table(["ticket>", "epoch>", "step>", "became", "version>", *means, "different\ntexts"], rows, cut=False)


def _table(names: Sequence[str], rows: Sequence[Cells], *, cut: bool = True) -> Table:
    """A table without lines; a name that ends with > is of numbers.

    The last column alone gives way where the terminal is narrow: it is cut, or wraps.
    """
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1), expand=cut)
    for place, name in enumerate(names):
        title, is_last = name.removesuffix(">"), place == len(names) - 1
        widest = max(
            cell_len(line) for text in (title, *(str(row[place]) for row in rows)) for line in text.split("\n")
        )
        table.add_column(
            title,
            justify="right" if name.endswith(">") else "left",
            no_wrap=cut or not is_last,
            overflow="ellipsis" if cut else "fold",
            min_width=None if is_last else widest,
            ratio=1 if cut and is_last else None,
        )
    for row in rows:
        # Texts of the run are no markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return table


def _weighted(reward: RewardFacts) -> str:
    return "" if reward.value is None else number(math.prod((reward.weight, reward.value)))


def _calls(one: RolloutFacts) -> str:
    failed = one.tool_failure_count
    return f"{one.tool_call_count} ({failed} failed)" if failed else str(one.tool_call_count)


def _beginning(text: str | None, error: str | None) -> str:
    """The first characters of a completion in one line, or its error."""
    told = f"error: {error}" if error else text or ""
    line = visible(" ".join(told.split("\n")))
    return line[:NAMED_CHARACTERS] + ("…" if len(line) > NAMED_CHARACTERS else "")
