"""How large the rows and the rollouts of a run can get: what its settings allow, and its longest prompt."""

from __future__ import annotations

from dataclasses import dataclass

from agrpo.config import RunConfig
from agrpo.packing.tree import Tree
from agrpo.prompts import lacks_prompt, messages_of

PROMPTS_LOOKED_AT = 200
CHARACTERS_PER_TOKEN = 3.0
"""Of a prompt with its template. English takes 4, other languages and numbers fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSize:
    """Counts of tokens, at full length."""

    sequence: int
    """A prompt and its completion."""
    tokens: int
    """The fullest row."""
    gathered: float
    """Keys that attention reads for a token of a row: above 1 where samples share their beginning."""
    in_flight: int
    """Rollouts that one generator decodes at once."""


def row_size(config: RunConfig, *, ranks: int = 1) -> RowSize:
    """Of the run's longest prompt among the first ones, and completions as long as they may be."""
    prompt = _prompt_tokens(config)
    completion = min(config.sampling.max_completion_length, max(1, config.step.micro_tokens - prompt))
    count, groups = config.sampling.num_generations, config.step.groups
    shared, alone = prompt + count * completion, count * (prompt + completion)
    packed = isinstance(config.packing, Tree)
    step = -(-groups * (shared if packed else alone) // ranks)
    # A generator begins no more groups than may still be trained in time.
    ahead = groups * config.asynchronous.weight_sync_steps * (config.asynchronous.max_staleness + 1) * count
    decoded: int = getattr(config.engine, "batch_rollouts", config.asynchronous.max_concurrent_rollouts)
    return RowSize(
        sequence=prompt + completion,
        tokens=min(config.step.micro_tokens, step),
        gathered=min(config.packing.max_gathered, (prompt + alone) / shared)
        if isinstance(config.packing, Tree)
        else 1.0,
        in_flight=min(decoded, config.asynchronous.max_concurrent_rollouts, ahead),
    )


def _prompt_tokens(config: RunConfig) -> int:
    """About how many the longest of the first prompts has, within what a row leaves."""
    rows = config.prompts.source()
    longest = max(
        (
            sum(len(str(message.get("content", ""))) for message in messages_of(rows[index], index))
            for index in range(min(len(rows), PROMPTS_LOOKED_AT))
            if not lacks_prompt(rows[index])
        ),
        default=0,
    )
    return min(config.step.micro_tokens - 1, 16 + round(longest / CHARACTERS_PER_TOKEN))
