"""One group's scores, held against the group they are of and against their own parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agrpo.errors import FilterError
from agrpo.filters import left_out_by
from agrpo.records.score import UNTRAINABLE, Mark, ScoredGroup, marks_of, total_rewards, values_of

if TYPE_CHECKING:
    from agrpo.filters import Filter

Sampler = tuple[int, int, int | None, int | None]
"""Version, attempt, step and ordinal of the weights that a group was sampled by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What of a group its scores follow from. Tuples have one entry per rollout."""

    prompt_id: str
    sampler: Sampler
    base: int
    refusal: str | None
    filtered: bool
    completions: tuple[int, ...]
    """Generated tokens."""
    turns: tuple[int, ...]
    own_rewards: tuple[float | None, ...]
    paid: dict[str, tuple[float | None, ...]]
    """What environments gave, by the name under which that is a reward; empty where they give nothing."""
    failed: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRules:
    """What marks follow from beside scores."""

    micro_tokens: int
    """Most tokens of a sample."""
    min_group: int = 2
    """Fewest scored rollouts that the run's advantage compares."""
    zero_variance_reward: str | None = None
    filters: Mapping[str, Filter] | None = None
    """The run's, by name; None: not known here, so that their answers stand."""


def odd_scores(group: Judged, scored: ScoredGroup, rules: MarkRules) -> Iterator[str]:
    """What the scores say otherwise than they should, a sentence each."""
    if group.prompt_id != scored.prompt_id:
        yield f"its group asks prompt {group.prompt_id}, its scores are of {scored.prompt_id}; expected the same"
    if list(group.completions) != scored.num_completion_tokens:
        found = scored.num_completion_tokens
        yield f"its rollouts have {list(group.completions)} tokens, the scored ones {found}; expected the same"
        return
    yield from _odd_origin(group, scored)
    if any(scored.num_turns) and list(group.turns) != scored.num_turns:
        yield f"its rollouts have {list(group.turns)} turns, the scored ones {scored.num_turns}; expected the same"
    given = {score.reward: score.values for score in scored.scores}
    for name, values in group.paid.items():
        if given.get(name) != list(values):
            yield f"its environment {name} gave {list(values)}, its scores say {given.get(name)}; expected the same"
    rewards = total_rewards(scored.scores, list(group.own_rewards))
    if _told(rewards) != _told(scored.rewards):
        yield f"its scores make rewards {_told(rewards)}, they say {_told(scored.rewards)}; expected the same"
    marks = _marks(group, scored, rules)
    if marks != scored.marks - {Mark.LEFT_OUT}:
        yield f"its scores have the marks {_named(scored.marks)}; by its rewards expected {_named(marks)}"
    else:
        yield from _odd_filter(scored, marks, rules)


def _odd_filter(scored: ScoredGroup, marks: frozenset[Mark], rules: MarkRules) -> Iterator[str]:
    told = scored.left_out_by
    if (Mark.LEFT_OUT in scored.marks) != (told is not None):
        yield f"its scores have the marks {_named(scored.marks)} and are left out by {told}; expected both or neither"
        return
    if rules.filters is None:
        return
    try:
        asked = not marks & UNTRAINABLE
        found = left_out_by(rules.filters, replace(scored, marks=marks, left_out_by=None)) if asked else None
    except FilterError as error:
        yield f"whether a filter leaves it out cannot be told: {error}"
        return
    if found != told:
        yield f"its scores say that it is left out by {told}; the run's filters say {found}"


def _odd_origin(group: Judged, scored: ScoredGroup) -> Iterator[str]:
    sampler = (scored.model_version, scored.model_attempt, scored.model_step, scored.model_ordinal)
    if group.sampler != sampler:
        yield f"its group was sampled by {sampled_by(group.sampler)}, its scores say {sampled_by(sampler)}; expected the same"
    if scored.base not in (0, group.base):  # 0: not said
        yield f"its group was claimed under base {group.base}, its scores say {scored.base}; expected the same"
    if group.refusal != scored.refusal:
        yield f"its group was refused as {group.refusal}, its scores say {scored.refusal}; expected the same"


def sampled_by(sampler: Sampler) -> str:
    """The weights, in words."""
    version, attempt, step, ordinal = sampler
    return f"version {version} of attempt {attempt} (step {step}, ordinal {ordinal})"


def _marks(group: Judged, scored: ScoredGroup, rules: MarkRules) -> frozenset[Mark]:
    """All but a filter's."""
    if group.refusal is not None:
        return frozenset({Mark.FILTERED if group.filtered else Mark.REFUSED_PROMPT})
    if all(group.failed):
        return frozenset({Mark.FAILED})
    oversize = _is_oversize(group, scored, rules.micro_tokens)
    kept = scored.marks & {Mark.OVERSIZE} if oversize is None else frozenset({Mark.OVERSIZE} if oversize else ())
    tested = values_of(scored.scores, rules.zero_variance_reward)
    return marks_of(scored.rewards, tested, rules.min_group) | kept


def _is_oversize(group: Judged, scored: ScoredGroup, micro_tokens: int) -> bool | None:
    """Whether every training sequence is too long; None: only the tokens can tell."""
    lengths = [tokens for tokens in scored.num_forwarded_tokens if tokens]
    if not lengths or min(lengths) <= micro_tokens:  # the sequences of a rollout are no longer than they are together
        return False
    return True if max(group.turns) <= 1 else None


def _told(rewards: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(reward) else reward for reward in rewards]


def _named(marks: frozenset[Mark]) -> str:
    return ", ".join(sorted(marks)) or "none"
