"""How late a rollout may be: the only arithmetic of staleness, shared by generator and learner.

A *version* counts published weights. Staleness is the number of publishes between the version that sampled a group's
first token and the version the learner holds when it plans the group's step.
"""

from __future__ import annotations


def may_generate(ticket: int, dropped: int, version: int, groups_per_version: int, max_staleness: int) -> bool:
    """Whether a group begun now can still be trained in time.

    `ticket - dropped` groups come before it in training, so it is trained at version
    `(ticket - dropped) // groups_per_version` and may start at most `max_staleness` versions earlier. 0 makes the run
    synchronous.
    """
    return (ticket - dropped) // groups_per_version <= version + max_staleness


def staleness(version_now: int, version_sampled: int) -> int:
    """Weight updates between sampling and training. Never negative: no group is sampled by weights yet to come."""
    return version_now - version_sampled


def limit_ticket(
    consumed: set[int], floor: int, tokens: dict[int, int], mean_tokens: float | None, allowance: float
) -> int:
    """The first ticket that may not be claimed, given a run-ahead allowance in tokens.

    A group may start while the tokens of all unconsumed groups before it stay below `allowance`. A finished group
    counts its own tokens, one in flight counts `mean_tokens`. Until one group has finished (`mean_tokens` is None)
    groups start one at a time.

    `consumed`: tickets at or above `floor` that a plan holds; every ticket below `floor` is consumed.
    `tokens`: forwarded tokens of finished groups by ticket.
    """
    held, ticket = 0.0, floor
    if mean_tokens is None:
        while ticket in consumed:
            ticket += 1
        return ticket + 1
    mean = max(mean_tokens, 1.0)
    while True:
        if ticket not in consumed:
            if held >= allowance:
                return ticket
            held += tokens.get(ticket, mean)
        ticket += 1
