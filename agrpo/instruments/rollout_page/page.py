"""A rollout's page for a terminal: what it is, what it was asked, what it wrote, what it got, and beside whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.rule import Rule
from rich.text import Text

from agrpo.instruments.rollout_page.colours import Colouring, scale_of
from agrpo.instruments.rollout_page.completion import completion, token_table, tokens_of
from agrpo.instruments.rollout_page.facts import RolloutPage
from agrpo.instruments.rollout_page.header import became, facts, header, messages
from agrpo.instruments.rollout_page.logs import GroupLog
from agrpo.instruments.rollout_page.tables import extras_table, group_table, reward_table
from agrpo.visible import harmless

LEARNERS = (Colouring.RATIO, Colouring.ENTROPY, Colouring.ADVANTAGE)
"""What only training gives a token."""


def rollout_page(
    page: RolloutPage,
    settings: Mapping[str, Any],
    *,
    colouring: Colouring = Colouring.LOGPROB,
    as_table: bool = False,
    group_first: bool = False,
    coloured: bool = True,
) -> Iterator[RenderableType]:
    """The page from top to bottom. `group_first`: the whole group before its rollout, instead of after it."""
    if group_first:
        yield from _group_head(page)
    yield from header(page)
    yield from _prompt(page)
    yield from facts(page.group.facts)
    if page.rollout is None:
        return
    if page.rollout.own_columns:
        yield _section("columns that rollout_loop.rollout_func returned")
        yield from facts(page.rollout.own_columns)
    yield _section("completion")
    for note in _notes(page, colouring, as_table=as_table):
        yield Text(f"({note})")
    scale = scale_of(colouring, settings, tokens_of(page))
    laid_out = token_table if as_table else completion
    yield from laid_out(page, scale, coloured=coloured)
    yield _section("rewards")
    yield reward_table(page)
    if page.extras:
        yield Text()
        yield extras_table(page)
    if not group_first:
        yield _section(f"group {page.group.ticket}{_marks(page)}")
        yield group_table(page.rollouts, page.rollout.rollout_index)


def _prompt(page: RolloutPage) -> Iterator[RenderableType]:
    """What this rollout was asked."""
    rollout = page.rollout
    if page.asked is not None:
        yield _section("prompt, as rollout_loop.rollout_func returned it")
        yield Text(harmless(page.asked))
    elif rollout is not None and rollout.own_prompt is not None:
        yield _section(f"prompt, as this rollout's {'environment' if rollout.environment_class else 'hook'} asked it")
        yield from messages(rollout.own_prompt)
    else:
        yield _section(
            "prompt of the row, of which rollout_loop.rollout_func made another" if page.by_function else "prompt"
        )
        yield from messages(page.group.prompt)


def log_section(log: GroupLog) -> Iterator[RenderableType]:
    """Lines of the stages' logs about the group."""
    yield _section("logs")
    if not log.lines:
        yield Text(f"no line about the group, no warning and no error in {log.folder}")
    for line in log.lines:
        yield Text.assemble((f"{line.stage:<9} ", "dim"), harmless(line.line))
    if log.num_left_out:
        yield Text(f"… and {log.num_left_out} more lines in {log.folder}")


def _group_head(page: RolloutPage) -> Iterator[RenderableType]:
    group = page.group
    how_many = f"{len(page.rollouts)} rollouts" if page.rollouts else "no rollouts, for the prompt was refused"
    yield Text.assemble((f"group {group.ticket}", "bold"), f": {how_many}, {became(page)}{_marks(page)}")
    if page.rollouts:
        yield group_table(page.rollouts, page.rollout.rollout_index if page.rollout else None)
        yield Text()


def _marks(page: RolloutPage) -> str:
    return f" · marked {', '.join(page.group.marks)}" if page.group.marks else ""


def _notes(page: RolloutPage, colouring: Colouring, *, as_table: bool) -> list[str]:
    """Those that matter to what is shown: nobody misses the learner's word who asks for the sampler's."""
    learners = as_table or colouring in LEARNERS
    return [note for note in (page.no_text, page.no_learner if learners else None) if note]


def _section(title: str) -> Rule:
    return Rule(Text(title, style="bold"), align="left", style="dim")
