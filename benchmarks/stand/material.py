"""Groups and scores of a made-up policy, in the shape of the quickstart's, so that a learner can train without a generator."""

from __future__ import annotations

from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_to_arrow, scored_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.records.prompt import Prompt
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.score import Score
from agrpo.stages.scorer import scored_group

PROMPT_TOKENS, SHORTEST, LONGEST = 22, 5, 20
GROUP_SIZE = 8
LOG_PROB = -5.7
"""Of every token under a policy that knows nothing of 300."""


def add_groups(folder: RunFolder, tickets: range, *, groups_per_version: int) -> None:
    """Publish groups and their scores, each sampled by the version that its step begins with."""
    import numpy as np

    draw = np.random.default_rng(0)
    for ticket in tickets:
        prompt_ids = draw.integers(10, 250, PROMPT_TOKENS).tolist()
        version = ticket // groups_per_version
        lengths = draw.integers(SHORTEST, LONGEST + 1, GROUP_SIZE).tolist()
        outputs = [draw.integers(10, 250, length).tolist() for length in lengths]
        rollouts = [_rollout(index, prompt_ids, output, version) for index, output in enumerate(outputs)]
        group = RolloutGroup(
            ticket=ticket,
            prompt=Prompt(id=f"p{ticket}", messages=[{"role": "user", "content": "1+2-3="}], facts={"answer": "0"}),
            rollouts=rollouts,
            model_version=version,
            generator="benchmark",
            claimed_at=1.0,
            finished_at=2.0,
        )
        score = Score(
            reward="made_up",
            weight=1.0,
            values=draw.random(GROUP_SIZE).tolist(),
            errors=[None] * GROUP_SIZE,
            duration_seconds=0.01,
        )
        folder.groups.publish(ticket, group_to_arrow(group))
        folder.scored.publish(ticket, scored_to_arrow(scored_group(group, [score], 16384)))


def _rollout(index: int, prompt_ids: list[int], output_ids: list[int], version: int) -> Rollout:
    turn = TurnRecord(
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        output_log_probs=[LOG_PROB] * len(output_ids),
        output_versions=[version] * len(output_ids),
        stop_reason=StopReason.STOP,
    )
    return Rollout(
        completion=[{"role": "assistant", "content": "made up"}],
        completion_ids=output_ids,
        turns=[turn],
        rollout_id=f"r{index}",
        index=index,
        seed=index,
        stop_reason=StopReason.STOP,
        duration_seconds=0.1,
    )
