"""The advantages of a plan, held against those that the rewards of its groups give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agrpo.audit.groups import ScoreFacts, TicketFacts
from agrpo.audit.look import Look
from agrpo.audit.steps import Consumed, PlanFacts
from agrpo.audit.terms import Terms
from agrpo.errors import RewardError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A group that a plan trains, whose scores can be read."""

    ticket: int
    consumed: Consumed
    scores: ScoreFacts


def check_advantages(look: Look, plan: PlanFacts, pairs: Sequence[tuple[TicketFacts, Consumed]], terms: Terms) -> None:
    """Each sample has the advantage that the rewards give its rollout, to the last bit. `pairs`: what the plan consumes.

    Where an advantage is made of all groups of a step, nothing is compared unless the scores of all can be read.
    """
    advantage = terms.advantage
    if advantage is None:
        return
    wanted = [(facts, one) for facts, one in pairs if one.reason is None]
    trained = [
        _Trained(ticket=facts.ticket, consumed=one, scores=facts.scores)
        for facts, one in wanted
        if facts.scores is not None
    ]
    if advantage.spans_step:
        whole = len(trained) == len(wanted) and len(pairs) == len(plan.consumed)
        _compare(look, plan, trained if whole else [], terms)
    else:
        for one in trained:
            _compare(look, plan, [one], terms)


def _compare(look: Look, plan: PlanFacts, trained: list[_Trained], terms: Terms) -> None:
    assert terms.advantage is not None, "there is something to compare with"
    step = f"step {plan.step} (attempt {plan.attempt})"
    try:
        given = terms.advantage([one.scores.group_rewards for one in trained])
    except RewardError as error:
        about = f"ticket {trained[0].ticket}" if len(trained) == 1 else step
        look.find(about, f"{step} trains it, and its rewards give no advantage: {error}")
        return
    for one, own in zip(trained, given, strict=True):
        _compare_group(look, step, one, own)


def _compare_group(look: Look, step: str, one: _Trained, given: np.ndarray) -> None:
    for (rollout, _), found in zip(one.consumed.samples, one.consumed.advantages, strict=True):
        if 0 <= rollout < len(given) and float(given[rollout]) != found:
            look.find(
                f"ticket {one.ticket}",
                f"{step} trains its rollout {rollout} with advantage {found!r}; its rewards give {float(given[rollout])!r}",
            )
            return
