"""Going back on purpose: which tickets a run that returns to step K gives up, and which prompts it asks again.

A group stays eligible where it was written, its ticket is known to a checkpoint up to K, and all its tokens were sampled at
steps up to K. What is neither eligible nor consumed by then is void for ever, and its prompt is asked again under a new
ticket, before any other.
"""

from __future__ import annotations

from agrpo.queue.lineage import members
from agrpo.queue.rewinds import Rewinds
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow
from agrpo.records.progress import Base
from agrpo.stages.standing import Standing
from agrpo.stages.succession import Inheritance


def rewound_base(folder: RunFolder, inheritance: Inheritance, standing: Standing, known_tickets: int) -> Base:
    """The base of an attempt that goes back to where it stands. `known_tickets`: the next ticket of a checkpoint up to it."""
    assert inheritance.rewind is not None
    before = Rewinds(inheritance.bases, folder.claims.base_of)
    first = folder.claims.next_free()
    still_open = [ticket for ticket in range(standing.consumed.floor, first) if ticket not in standing.consumed]
    eligible = _Eligible(folder, inheritance, before, standing.step)
    given_up = [
        ticket
        for ticket in still_open
        if before.void(ticket) is None and not (ticket < known_tickets and eligible(ticket))
    ]
    left, next_prompt = before.left(first)
    return Base(
        attempt=inheritance.attempt,
        parent=inheritance.parent,
        base_step=standing.step,
        adopted_through=standing.step,
        rewind=inheritance.rewind.number,
        first_ticket=first,
        reissue=given_up,
        prompts=[*(before.prompt_of(ticket) for ticket in given_up), *left],
        next_prompt=next_prompt,
    )


class _Eligible:
    """Whether a group is part of the history up to a step."""

    def __init__(self, folder: RunFolder, inheritance: Inheritance, before: Rewinds, step: int) -> None:
        self._folder = folder
        self._before = before
        self._step = step
        self._attempts = [member.attempt for member in members(inheritance.bases)]

    def __call__(self, ticket: int) -> bool:
        data = self._folder.groups.read(ticket)
        if data is None:
            return False
        group = group_from_arrow(data, self._folder.groups.key(ticket))
        if not self._before.version_counts(group.model_attempt, group.model_step):
            return False
        versions = {group.model_version} | {
            version for rollout in group.rollouts for turn in rollout.turns for version in turn.output_versions
        }
        return all(self._published_by(version) for version in versions)

    def _published_by(self, version: int) -> bool:
        found = [self._folder.version(attempt, version) for attempt in self._attempts]
        steps = [ready.step for ready in found if ready is not None]
        return bool(steps) and max(steps) <= self._step
