"""Environments: what the rollouts of a step waited for theirs (A-330, A-331)."""

from __future__ import annotations

from agrpo.metrics import StepFacts, mean


def measure(facts: StepFacts) -> dict[str, float | None]:
    """Over the rollouts of all consumed groups that had an environment, failed ones too; nothing in a run without."""
    stays = [stay for group in facts.consumed for stay in group.stays if stay is not None]
    return {
        "env/reset_s": mean(stay.reset_seconds for stay in stays),
        "env/reward_s": mean(stay.reward_seconds for stay in stays if stay.reward_seconds is not None),
    }
