"""Groups and scores made by hand, for tests of the stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agrpo.config import RunConfig, resolve
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_to_arrow, scored_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.score import Score
from agrpo.stages.scorer import scored_group

PROMPT_IDS = [3, 20, 4]


def a_config(**tables: Any) -> RunConfig:
    """A run of groups of two; `tables` are laid over it, `asynchronous` standing for `async`."""
    tree: dict[str, Any] = {
        "model": {"path": "nowhere"},
        "prompts": {"name": "files", "path": "nowhere.jsonl"},
        "rewards": [{"name": "exact_match"}],
        "engine": {"num_generations": 2, "max_completion_length": 8},
        "step": {"groups": 2, "micro_tokens": 64},
        "stop": {"max_steps": 5, "stall_seconds": 5.0},
    }
    for name, values in tables.items():
        table = "async" if name == "asynchronous" else name
        tree[table] = values if isinstance(values, list) else {**tree.get(table, {}), **values}
    return RunConfig.build(resolve(values=tree))


def a_group(
    ticket: int, *, version: int = 0, lengths: tuple[int, ...] = (3, 4), refusal: str | None = None
) -> RolloutGroup:
    """Rollouts of the given lengths; a length of 0 is a rollout that failed."""
    return RolloutGroup(
        ticket=ticket,
        prompt=Prompt(id=f"p{ticket}", messages=[{"role": "user", "content": str(ticket)}]),
        rollouts=[_rollout(ticket, index, length, version) for index, length in enumerate(lengths)],
        model_version=version,
        refusal=refusal,
        finished_at=1.0,
    )


def _rollout(ticket: int, index: int, length: int, version: int) -> Rollout:
    ids = [*(30 + (ticket + index + place) % 50 for place in range(length - 1)), 1][:length]
    logprobs = [-1.0 - 0.01 * place for place in range(length)]
    turn = TurnRecord(
        prompt_ids=PROMPT_IDS,
        output_ids=ids,
        output_log_probs=logprobs,
        output_sampler_logprobs=[{token: value, 29: -2.0} for token, value in zip(ids, logprobs, strict=True)],
        output_versions=[version] * length,
    )
    failed = length == 0
    return Rollout(
        completion=[] if failed else [{"role": "assistant", "content": f"answer {index}"}],
        completion_ids=ids,
        turns=[] if failed else [turn],
        rollout_id=f"{ticket}-{index}",
        index=index,
        stop_reason=StopReason.ENGINE_ERROR if failed else StopReason.STOP,
        error="the engine broke" if failed else None,
    )


def cut(group: RolloutGroup, *indices: int) -> RolloutGroup:
    """The group with these rollouts cut for their length."""
    return replace(
        group,
        rollouts=[
            replace(one, stop_reason=StopReason.LENGTH) if one.index in indices else one for one in group.rollouts
        ],
    )


def publish(
    folder: RunFolder,
    group: RolloutGroup,
    rewards: tuple[float | None, ...],
    micro_tokens: int = 64,
    *,
    others: Sequence[Score] = (),
    **rules: Any,
) -> None:
    """The group and its scores, as generator and scorer would have left them. `others`: of further rewards."""
    folder.groups.publish(group.ticket, group_to_arrow(group))
    score = Score(
        reward="judge",
        weight=1.0,
        values=[None if value is None or math.isnan(value) else value for value in rewards],
        errors=[None] * len(rewards),
    )
    folder.scored.publish(
        group.ticket,
        scored_to_arrow(scored_group(group, [score, *others] if group.rollouts else [], micro_tokens, **rules)),
    )
