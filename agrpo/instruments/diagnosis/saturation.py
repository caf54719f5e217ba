"""Saturation: groups whose rollouts all earn the same, and what that says of the prompts (A-357 to A-361)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agrpo.instruments.diagnosis.evidence import Evidence, percent
from agrpo.instruments.diagnosis.finding import NOTHING, Finding, Severity
from agrpo.instruments.diagnosis.reward_range import LEAST_CHANGE, RewardRange, reward_range
from agrpo.instruments.diagnosis.trend import Trend

LOW = 0.25
"""Up to this share of equal-reward groups a step keeps most of its signal."""
HIGH = 0.5
"""From this share on, most groups teach nothing."""
CUT = 0.01
"""From this share of cut completions on, more room could help."""
MOST_REFILL = 0.8
"""Up to this share refilling is offered: a step then takes five times the rollouts."""
LEAST_SHARE = 0.1
"""Smallest change of a share of groups that counts as rising or falling."""


@dataclass(frozen=True, kw_only=True)
class _EqualGroups:
    """Groups whose rollouts all earn the same."""

    share: float
    shares: Trend | None
    reward: float
    """Their mean reward over the window: a step with few of them says little."""
    rewards: Trend | None
    limits: RewardRange
    mean_reward: float
    """Of all groups."""
    mean_rewards: Trend | None

    @property
    def rising(self) -> bool:
        return self.shares is not None and self.shares.rising

    @property
    def at_top(self) -> bool:
        """As the window has it, or, while the reward rises, as the last steps have it."""
        if self.limits.near_top(self.reward):
            return True
        together, overall = self.rewards, self.mean_rewards
        if together is None or overall is None or not overall.rising:
            return False
        return self.limits.near_top(together.last) and self.limits.near_top(overall.last)

    @property
    def learning(self) -> bool:
        return self.mean_rewards is not None and self.mean_rewards.rising

    def __str__(self) -> str:
        shares = self.shares
        since = f" (rising, from {percent(shares.first)} to {percent(shares.last)})" if shares and shares.rising else ""
        same = f"In {percent(self.share)} of the groups{since} all rollouts earn the same reward"
        if self.limits.constant:
            return f"{same}: {self.reward:.2f}, and no step has shown another."
        return (
            f"{same}, on average "
            f"{self.reward:.2f} in a range of {self.limits}; the mean reward of all groups is {self.mean_reward:.2f}"
            f"{self._lately}."
        )

    @property
    def _lately(self) -> str:
        rewards = self.mean_rewards
        return f", lately {rewards.last:.2f}" if rewards is not None and rewards.rising else ""


def findings(evidence: Evidence) -> Iterator[Finding]:
    """One reading at most."""
    share = evidence.mean("frac_zero_std_groups")
    if share is None:
        return
    if share <= LOW:
        yield Finding(
            rule="A-357",
            severity=Severity.GOOD,
            title="Most groups have something to learn from",
            reading=f"Only in {percent(share)} of the groups all rollouts earn the same reward.",
            change=NOTHING,
        )
        return
    groups = _equal_groups(evidence, share)
    if groups is None:
        yield from _unplaced(share)
        return
    for rule in (_regression, _constant, _top, _bottom, _mixture):
        finding = rule(evidence, groups)
        if finding is not None:
            yield finding
            return


def _constant(evidence: Evidence, groups: _EqualGroups) -> Finding | None:
    """A reward of one's own that has only ever given one value above nothing; below, it never fired (A-359)."""
    if not groups.limits.constant or groups.share < HIGH or groups.reward <= 0:
        return None
    return Finding(
        rule="agrpo/constant-reward",
        severity=Severity.WARNING,
        title="The reward gave the same value to every rollout",
        reading=f"Every rollout of {len(evidence.history)} steps earned {groups.reward:.2f}: there is nothing to prefer.",
        change="Look at the reward ([[rewards]]): is it constant? If it is right, the prompts are all solved alike ([prompts]).",
    )


def _top(evidence: Evidence, groups: _EqualGroups) -> Finding | None:
    if not groups.at_top or not (groups.share >= HIGH or (groups.rising and groups.learning)):
        return None
    return Finding(
        rule="A-358",
        severity=Severity.NOTE,
        title="Saturated at the top: the prompts are too easy",
        reading=f"{groups} There is little left to learn from these prompts.",
        change=f"Stop here, or go on with harder prompts ([prompts]).{_refill(evidence, groups)}",
    )


def _bottom(evidence: Evidence, groups: _EqualGroups) -> Finding | None:
    if groups.share < HIGH or not groups.limits.near_bottom(groups.reward):
        return None
    if groups.learning or not groups.limits.is_low(groups.mean_reward):
        return None
    clipped = evidence.mean("completions/clipped_ratio")
    cut = "" if clipped is None else f" {percent(clipped)} of the completions are cut before the model ends them."
    room = f", or more room: {evidence.named('engine.max_completion_length')}" if clipped and clipped >= CUT else ""
    return Finding(
        rule="A-359",
        severity=Severity.WARNING,
        title="Stuck at the bottom: too hard, or the reward never fires",
        reading=f"{groups}{cut}",
        change="Read completions first: does the reward find the answer in them ([[rewards]])? Then try easier prompts "
        f"([prompts]) or a better start (model.path){room}.",
    )


def _regression(evidence: Evidence, groups: _EqualGroups) -> Finding | None:
    falling, together = groups.mean_rewards, groups.rewards
    if not groups.rising or falling is None or not falling.falling or together is None or not together.falling:
        return None
    return Finding(
        rule="A-360",
        severity=Severity.WARNING,
        title="Regression: groups that passed now fail together",
        reading=f"{groups} It fell from {falling.first:.2f} to {falling.last:.2f}, and that of those groups from "
        f"{together.first:.2f} to {together.last:.2f}.{_collapse(evidence)}",
        change=f"Lower {evidence.named('optimizer.learning_rate')} and start from a model of before the fall (model.path).",
    )


def _mixture(evidence: Evidence, groups: _EqualGroups) -> Finding | None:
    if groups.share < HIGH or groups.at_top or groups.limits.near_bottom(groups.reward):
        return None
    return Finding(
        rule="A-361",
        severity=Severity.NOTE,
        title="Most groups teach nothing: too easy mixed with too hard",
        reading=f"{groups} With 0/1 rewards some prompts are always solved and others never; with finer rewards it may "
        "also be one partial score that all rollouts share.",
        change="Read rollouts of such groups; then leave out prompts that are too easy or too hard ([prompts]), or let the "
        f"reward tell more apart ([[rewards]]).{_refill(evidence, groups)}",
    )


def _unplaced(share: float) -> Iterator[Finding]:
    """The share alone, where nobody measured what those groups earn."""
    if share >= HIGH:
        yield Finding(
            rule="agrpo/equal-rewards",
            severity=Severity.NOTE,
            title="Most groups teach nothing",
            reading=f"In {percent(share)} of the groups all rollouts earn the same reward; whether a high or a low one was not "
            "measured (reward_zero_std_groups).",
            change="Read rollouts of such groups: too easy, too hard, or a reward that tells nothing apart?",
        )


def _equal_groups(evidence: Evidence, share: float) -> _EqualGroups | None:
    reward = evidence.weighted_mean("reward_zero_std_groups", "frac_zero_std_groups")
    mean_reward = evidence.mean("reward")
    if reward is None or mean_reward is None:
        return None
    limits = reward_range(evidence)
    least = LEAST_CHANGE * limits.width
    return _EqualGroups(
        share=share,
        shares=evidence.trend("frac_zero_std_groups", LEAST_SHARE),
        reward=reward,
        rewards=evidence.trend("reward_zero_std_groups", least),
        limits=limits,
        mean_reward=mean_reward,
        mean_rewards=evidence.trend("reward", least),
    )


def _collapse(evidence: Evidence) -> str:
    """What duplicates and entropy say meanwhile, as the documented reading asks."""
    repeated, entropy = evidence.mean("completions/duplicate_frac"), evidence.mean("entropy")
    told = [
        *([] if repeated is None else [f"{percent(repeated)} of the rollouts repeat another of their group"]),
        *([] if entropy is None else [f"entropy is {entropy:.3f} nats per token"]),
    ]
    return f" Meanwhile {'; '.join(told)}." if told else ""


def _refill(evidence: Evidence, groups: _EqualGroups) -> str:
    """The setting that makes up for such groups, or what it costs where it is on."""
    share = groups.share if evidence.set_aside is None else evidence.set_aside
    price = f"{1 / (1 - share):.1f} times the rollouts" if share < 1 else "ever more rollouts"
    if evidence.zero_variance == "refill":
        return f' Meanwhile step.zero_variance = "refill" costs {price}; with "drop" steps stay short.'
    if evidence.zero_variance is None or groups.share > MOST_REFILL or groups.rising:
        return ""
    return f' With step.zero_variance = "refill" steps are filled with groups that still teach, at {price}.'
