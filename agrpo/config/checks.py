"""Rules that no setting can see alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agrpo.config.sections import RewardSection
from agrpo.records.sampling import Sampling

if TYPE_CHECKING:
    from agrpo.engines import EnginePart


def cross_checks(
    sections: Mapping[str, Any], sampling: Sampling, rewards: list[RewardSection], engine: EnginePart
) -> list[str]:
    """What no setting can see alone."""
    problems: list[str] = []
    stop, optimizer, asynchronous = sections["stop"], sections["optimizer"], sections["async"]
    if sampling.top_p < 1.0 and sampling.top_k == 0:
        problems.append(
            "engine.top_p: below 1 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if sampling.min_p > 0.0 and sampling.top_k == 0:
        problems.append(
            "engine.min_p: above 0 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if stop.max_steps is None and stop.epochs is None:
        problems.append("stop: says no end; set stop.max_steps or stop.epochs")
    refills = (sections["step"].zero_variance or ("keep" if asynchronous.max_staleness == 0 else "refill")) == "refill"
    if optimizer.scheduler in ("linear", "cosine") and stop.max_steps is None and refills:
        problems.append(
            f'optimizer.scheduler: "{optimizer.scheduler}" decays to the last step, whose number is unknown when '
            "groups are refilled; set stop.max_steps, or step.zero_variance to keep or drop"
        )
    if optimizer.scheduler == "constant" and optimizer.warmup_steps:
        problems.append(
            'optimizer.warmup_steps: the schedule "constant" has no warm-up; set optimizer.scheduler = "constant_with_warmup"'
        )
    if sections["step"].micro_tokens <= sampling.max_completion_length:
        problems.append(
            f"step.micro_tokens = {sections['step'].micro_tokens}: a prompt and a completion of "
            f"engine.max_completion_length = {sampling.max_completion_length} tokens do not fit; raise the first or lower the second"
        )
    if asynchronous.max_concurrent_rollouts < sampling.num_generations:
        problems.append(
            f"async.max_concurrent_rollouts = {asynchronous.max_concurrent_rollouts}: one group has "
            f"engine.num_generations = {sampling.num_generations} rollouts; allow at least that many"
        )
    if sampling.reproducible and not engine.can_reproduce:
        problems.append("engine.reproducible: this engine cannot repeat a request bit for bit; use transformers")
    names = [reward.name for reward in rewards]
    problems += [
        f'rewards: "{name}" is listed twice; its values could not be told apart'
        for name in {*names}
        if names.count(name) > 1
    ]
    return problems
