"""One consumed ticket: why it was trained or dropped, and which of its samples were trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from agrpo.audit.groups import ScoreFacts, TicketFacts
from agrpo.audit.look import Look
from agrpo.audit.steps import Consumed
from agrpo.audit.terms import Terms
from agrpo.records.progress import VOID, DropReason
from agrpo.records.score import Mark, fills_step

_REASONS = {
    Mark.REFUSED_PROMPT: DropReason.REFUSED_PROMPT,
    Mark.FILTERED: DropReason.FILTERED,
    Mark.FAILED: DropReason.FAILED,
    Mark.OVERSIZE: DropReason.OVERSIZE,
    Mark.LEFT_OUT: DropReason.LEFT_OUT,
    Mark.TOO_FEW_SCORES: DropReason.TOO_FEW_SCORES,
    Mark.EQUAL_REWARDS: DropReason.EQUAL_REWARDS,
}
"""Reasons that follow from a group's scores alone, the strongest first, as the learner has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A consumed ticket, and what the history says of it."""

    facts: TicketFacts
    consumed: Consumed
    void: DropReason | None
    """By the bases and its claim."""
    version_counts: bool
    """Whether the weights that sampled it are part of the history."""

    @property
    def about(self) -> str:
        return f"ticket {self.facts.ticket}"

    @property
    def step(self) -> str:
        return f"step {self.consumed.step} (attempt {self.consumed.attempt})"


def check_consumed(look: Look, case: Case, terms: Terms) -> None:
    """What a plan says of a ticket is what scores, bases and publishes make of it."""
    facts, consumed = case.facts, case.consumed
    if _reason_if(consumed.reason, VOID) is not case.void:
        doing = f"drops it as {consumed.reason}" if consumed.reason else "trains it"
        look.find(case.about, f"{case.step} {doing}; by the bases it is {case.void or 'not void'}")
    if consumed.reason in VOID:
        return
    _check_slots(look, case)
    scores = facts.scores
    if scores is None:
        return
    staleness = terms.ordinal_before(consumed.step) - scores.ordinal
    if consumed.staleness is not None and consumed.staleness != staleness:
        look.find(
            case.about,
            f"{case.step} trains it at staleness {consumed.staleness}; expected {staleness}: planned after "
            f"{terms.ordinal_before(consumed.step)} publishes, sampled after {scores.ordinal}",
        )
    expected = _reason(case, scores, staleness, terms)
    if consumed.reason is not expected and case.void is None:
        look.find(
            case.about,
            f"{case.step} {_doing(consumed.reason)}; expected that it {_doing(expected)}: its scores have the marks "
            f"{', '.join(sorted(scores.marks)) or 'none'}, its staleness is {staleness} of {terms.max_staleness} allowed, "
            f"its version {'counts' if case.version_counts else 'was left behind'}",
        )
    elif consumed.reason is DropReason.LEFT_OUT and consumed.left_out_by != scores.left_out_by:
        look.find(
            case.about,
            f"{case.step} says that {consumed.left_out_by} leaves it out; expected {scores.left_out_by}, as its scores say",
        )
    if consumed.reason is None:
        _check_samples(look, case, scores, terms)


def takes_no_place(consumed: Consumed, facts: TicketFacts, terms: Terms) -> bool | None:
    """Whether others came in the place of a dropped group; None: its scores cannot be read."""
    if consumed.reason in (*VOID, DropReason.STALE, DropReason.VOID_VERSION):
        return True
    return None if facts.scores is None else not fills_step(facts.scores.marks, terms.zero_variance)


def num_truncated(scores: ScoreFacts, terms: Terms) -> int:
    """Samples of a trained group that are left out since their rollouts were cut."""
    return sum(number for rollout, number in _wanted(scores) if _is_masked(scores, rollout, terms))


def num_missing(consumed: Consumed, scores: ScoreFacts, terms: Terms) -> int:
    """Other trainable samples of it that no plan has."""
    return sum(number for _, number in _wanted(scores)) - num_truncated(scores, terms) - len(consumed.samples)


def _wanted(scores: ScoreFacts) -> list[tuple[int, int]]:
    """Rollouts that were scored, each with its number of samples."""
    pairs = zip(scores.num_sequences, scores.rewards, strict=True)
    return [(rollout, number) for rollout, (number, reward) in enumerate(pairs) if not math.isnan(reward)]


def _is_masked(scores: ScoreFacts, rollout: int, terms: Terms) -> bool:
    return terms.step.mask_truncated and scores.truncated[rollout]


def _reason_if(reason: DropReason | None, kinds: frozenset[DropReason]) -> DropReason | None:
    return reason if reason in kinds else None


def _doing(reason: DropReason | None) -> str:
    return f"drops it as {reason}" if reason else "trains it"


def _reason(case: Case, scores: ScoreFacts, staleness: int, terms: Terms) -> DropReason | None:
    kept = frozenset({Mark.EQUAL_REWARDS}) if terms.zero_variance == "keep" else frozenset[Mark]()
    for mark, reason in _REASONS.items():
        if mark in scores.marks - kept:
            return reason
    if not case.version_counts:
        return DropReason.VOID_VERSION
    return DropReason.STALE if staleness > terms.max_staleness else None


def _check_slots(look: Look, case: Case) -> None:
    facts, reason = case.facts, case.consumed.reason
    unread = {entry.stream for entry in facts.unread}
    wanted = [(facts.scores, look.folder.scored), *([(facts.group, look.folder.groups)] if not reason else [])]
    for held, topic in wanted:
        if held is None and topic.name not in unread:
            key = topic.key(facts.ticket)
            look.find(
                case.about, f"{case.step} {_doing(reason)}; expected {key}, or an archive that holds it; found neither"
            )


def _check_samples(look: Look, case: Case, scores: ScoreFacts, terms: Terms) -> None:
    """The samples that a plan names are those of the group."""
    planned: dict[int, list[int]] = {}
    for rollout, sequence in case.consumed.samples:
        planned.setdefault(rollout, []).append(sequence)
    group, num_rollouts = case.facts.group, len(scores.num_sequences)
    for rollout, sequences in planned.items():
        if not 0 <= rollout < num_rollouts:
            look.find(case.about, f"{case.step} trains its rollout {rollout}, which is not in the group")
            continue
        most = None if group is None or rollout >= len(group.turns) else group.turns[rollout]
        odd = [sequence for sequence in sequences if sequence < 0 or (most is not None and sequence >= most)]
        if odd or len(sequences) > scores.num_sequences[rollout]:
            look.find(
                case.about,
                f"{case.step} trains sequences {sequences} of its rollout {rollout}, which has "
                f"{scores.num_sequences[rollout]} to train",
            )
        if math.isnan(scores.rewards[rollout]):
            look.find(case.about, f"{case.step} trains its rollout {rollout}, which no reward has judged")
        if _is_masked(scores, rollout, terms):
            look.find(case.about, f"{case.step} trains its rollout {rollout}, which was cut (step.mask_truncated)")
    _check_left_out(look, case, scores, planned, terms)
    _check_tokens(look, case)


def _check_left_out(look: Look, case: Case, scores: ScoreFacts, planned: Mapping[int, list[int]], terms: Terms) -> None:
    """Only a sequence that is too long is left out, or one of a rollout that was cut."""
    for rollout, number in _wanted(scores):
        held = len(planned.get(rollout, ()))
        short = scores.num_forwarded[rollout] <= terms.step.micro_tokens
        if held < number and short and not _is_masked(scores, rollout, terms):
            look.find(
                case.about,
                f"{case.step} trains {held} of the {number} sequences of its rollout {rollout}; expected all",
            )


def _check_tokens(look: Look, case: Case) -> None:
    """The tokens that were trained are those of the slot, where they were joined."""
    group, consumed = case.facts.group, case.consumed
    if group is None or group.sequences is None or consumed.trained_tokens is None:
        return
    for (rollout, sequence), tokens in zip(consumed.samples, consumed.trained_tokens, strict=True):
        own = group.sequences[rollout] if 0 <= rollout < len(group.sequences) else ()
        trained = own[sequence] if 0 <= sequence < len(own) else 0
        if trained != tokens:
            look.find(
                case.about,
                f"{case.step} trained {tokens} tokens of rollout {rollout}, sequence {sequence}; its slot has {trained}",
            )
