"""The prompts that a run did best, did worst and learnt most from, with what the policy wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.instruments.report.asking import ask

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_PROMPTS = 3
"""Of each kind."""
MOST_ROLLOUTS = 3
"""Of a prompt's earliest group, and of its latest."""
LONGEST_TEXT = 1500
"""Characters of a prompt or a completion; what is longer is cut, with a note."""

_JUDGED = """
    WITH judged AS (
        SELECT prompt_id, ticket, step, sum(reward) AS total, count(reward) AS number,
            step <= (SELECT max(step) / 2 FROM live_steps) AS early
        FROM scores JOIN group_status USING (ticket)
        WHERE step IS NOT NULL AND isfinite(reward)
        GROUP BY ALL
    ),
    prompts AS (
        SELECT prompt_id, count(*) AS num_groups, sum(number)::BIGINT AS num_rollouts, sum(total) / sum(number) AS reward,
            sum(total) FILTER (early) / sum(number) FILTER (early) AS early_reward,
            sum(total) FILTER (NOT early) / sum(number) FILTER (NOT early) AS late_reward,
            arg_min(ticket, (step, ticket)) AS first_ticket, arg_max(ticket, (step, ticket)) AS last_ticket
        FROM judged GROUP BY prompt_id
    )
"""

_BEST = f"{_JUDGED} FROM prompts ORDER BY reward DESC, num_rollouts DESC, prompt_id LIMIT {MOST_PROMPTS}"

_WORST = f"""
    {_JUDGED} FROM prompts
    WHERE NOT list_contains(?, prompt_id)
    ORDER BY reward, num_rollouts DESC, prompt_id LIMIT {MOST_PROMPTS}
"""

_IMPROVED = f"""
    {_JUDGED} FROM prompts
    WHERE late_reward > early_reward
    ORDER BY late_reward - early_reward DESC, num_rollouts DESC, prompt_id LIMIT {MOST_PROMPTS}
"""

_RETURNED = (
    f"{_JUDGED} SELECT count(*) AS number FROM prompts WHERE early_reward IS NOT NULL AND late_reward IS NOT NULL"
)

_ROLLOUTS = f"""
    SELECT
        ticket, rollout_index, step, status, reason, reward, stop_reason, num_completion_tokens, staleness,
        completion_text[:{LONGEST_TEXT}] AS text, greatest(0, length(completion_text) - {LONGEST_TEXT}) AS characters_cut
    FROM rollouts_with_rewards
    WHERE list_contains(?, ticket) AND rollout_index < {MOST_ROLLOUTS}
    ORDER BY step, ticket, rollout_index
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownRollout:
    """One rollout as it is read."""

    ticket: int
    rollout_index: int
    step: int | None
    """That consumed its group."""
    status: str
    """What became of its group."""
    reason: str | None
    reward: float | None
    stop_reason: str
    num_completion_tokens: int
    staleness: int | None
    text: str | None
    characters_cut: int | None
    """Left out at the end of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptStory:
    """A prompt, how the policy did on it, and some of what it wrote."""

    prompt_id: str
    prompt: str
    characters_cut: int
    num_groups: int
    num_rollouts: int
    reward: float
    """Mean over its rollouts."""
    early_reward: float | None
    """Over those consumed in the first half of the steps; None: there are none."""
    late_reward: float | None
    rollouts: tuple[ShownRollout, ...]
    """The first of its earliest group, then of its latest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptStories:
    """By how they went."""

    best: tuple[PromptStory, ...]
    worst: tuple[PromptStory, ...]
    """None of the best."""
    improved: tuple[PromptStory, ...]
    """Prompts that came in both halves of the run and were answered better in the second."""
    num_returned: int
    """Prompts that came in both halves."""


def read_stories(connection: DuckDBPyConnection) -> PromptStories:
    """Prompts of consumed groups, told apart by their content."""
    best = _stories(connection, ask(connection, _BEST))
    worst = ask(connection, _WORST, [[story.prompt_id for story in best]])
    return PromptStories(
        best=best,
        worst=_stories(connection, worst),
        improved=_stories(connection, ask(connection, _IMPROVED)),
        num_returned=ask(connection, _RETURNED)[0]["number"],
    )


def _stories(connection: DuckDBPyConnection, rows: list[dict[str, Any]]) -> tuple[PromptStory, ...]:
    return tuple(_story(connection, row) for row in rows)


def _story(connection: DuckDBPyConnection, row: dict[str, Any]) -> PromptStory:
    tickets = sorted({row.pop("first_ticket"), row.pop("last_ticket")})
    (found,) = ask(connection, "SELECT prompt FROM groups WHERE ticket = ?", tickets[:1])
    text = "\n".join(_message(message) for message in json.loads(found["prompt"]))
    return PromptStory(
        prompt=text[:LONGEST_TEXT],
        characters_cut=max(0, len(text) - LONGEST_TEXT),
        rollouts=tuple(ShownRollout(**rollout) for rollout in ask(connection, _ROLLOUTS, [tickets])),
        **row,
    )


def _message(message: dict[str, Any]) -> str:
    return f"{message.get('role', '')}: {_content(message.get('content'))}"


def _content(content: object) -> str:
    """A message's text; other content as JSON."""
    if isinstance(content, str):
        return content
    parts: Iterable[object] = content if isinstance(content, list) else [content]
    return " ".join(json.dumps(part, ensure_ascii=False) for part in parts)
