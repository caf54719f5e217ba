"""The groups of a run as its slots hold them: each read whole, the counts of tokens and scores compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from agrpo.audit.archives import Written
from agrpo.audit.balance import Finding
from agrpo.audit.columns import SLOT_COLUMNS, Row
from agrpo.audit.look import UNREADABLE, Look, told_by
from agrpo.audit.scores import Judged, MarkRules, Sampler, odd_scores
from agrpo.database.ledger import Entry
from agrpo.errors import StoreLostWrites
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.topic import Topic
from agrpo.records.arrow import GROUP_SCHEMA, SCORED_SCHEMA, group_from_arrow, read_table, scored_from_arrow
from agrpo.records.extras import number_of, text_of
from agrpo.records.group_rewards import GroupRewards
from agrpo.records.rollout import UNANSWERED
from agrpo.records.score import Mark, ScoredGroup

T = TypeVar("T")

READERS = 16
"""Objects asked for at once where each costs a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts(Judged):
    """A generated group, without its tokens."""

    claim_try: int
    epoch: int
    row_index: int
    sequences: tuple[tuple[int, ...], ...] | None
    """Trained tokens of the rollouts' sequences; None unless they were counted."""
    row: Row
    """Of the database."""
    rollouts: list[Row]
    turn_rows: list[Row]
    tool_calls: list[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFacts:
    """A group's scores."""

    sampler: Sampler
    ordinal: int
    marks: frozenset[Mark]
    left_out_by: str | None
    rewards: tuple[float, ...]
    group_rewards: GroupRewards
    truncated: tuple[bool, ...]
    num_sequences: tuple[int, ...]
    num_forwarded: tuple[int, ...]
    row: Row
    """Of the database."""
    reward_rows: list[Row]
    scores: list[Row]
    extras: list[Row]
    metrics: list[Row]


@dataclass(slots=True, kw_only=True)
class TicketFacts:
    """What is written under a ticket."""

    ticket: int
    claim: int | None = None
    """Attempt under whose base it was first claimed."""
    group: GroupFacts | None = None
    scores: ScoreFacts | None = None
    num_read: int = 0
    findings: list[Finding] = field(default_factory=list)
    unread: list[Entry] = field(default_factory=list)
    """Slots that are there and cannot be read."""


def read_groups(
    look: Look, written: Written, consumed: Iterable[int], *, rules: MarkRules, deep: bool
) -> dict[int, TicketFacts]:
    """Everything under every ticket. `consumed`: by plans, so that they have slots, or an archive holds them.

    `rules`: what marks follow from beside scores. `deep`: read the tokens too, and join them to sequences once
    more.
    """
    known = set(consumed)
    tickets = sorted(written.tickets | known)
    reader = _Reader(look.folder, written, known, rules, deep=deep)
    found: dict[int, TicketFacts] = {}
    for number, facts in enumerate(_mapped(reader, tickets, "://" in look.folder.url)):
        found[facts.ticket] = facts
        _note(look, facts.findings)
        look.num_read += facts.num_read
        look.unread.update(facts.unread)
        _expect(look, facts)
        look.tell("groups", number + 1, len(tickets))
    return found


def _note(look: Look, findings: list[Finding]) -> None:
    """A file of the archive that is damaged or gone holds many tickets, and is told of once."""
    known = {finding.told for finding in look.findings} if findings else set[str]()
    for finding in findings:
        if "archive" not in finding.told or finding.told not in known:
            look.note(finding)


def _mapped(read: Callable[[int], T], tickets: list[int], remote: bool) -> Iterator[T]:
    if not remote:
        yield from map(read, tickets)
        return
    with ThreadPoolExecutor(READERS) as readers:
        yield from readers.map(read, tickets)


class _Reader:
    """Reads what is under one ticket. Thread-safe."""

    def __init__(
        self, folder: RunFolder, written: Written, consumed: set[int], rules: MarkRules, *, deep: bool
    ) -> None:
        self._folder = folder
        self._written = written
        self._consumed = consumed
        self._rules = rules
        self._deep = deep

    def __call__(self, ticket: int) -> TicketFacts:
        facts = TicketFacts(ticket=ticket)
        if ticket in self._written.claimed:
            facts.claim = self._claim(facts)
        if ticket in self._written.generated or ticket in self._consumed:
            facts.group = self._slot(facts, self._folder.groups, self._group)
        if ticket in self._written.scored or ticket in self._consumed:
            facts.scores = self._slot(facts, self._folder.scored, self._scores)
        self._compare(facts)
        return facts

    def _claim(self, facts: TicketFacts) -> int | None:
        try:
            base = self._folder.claims.base_of(facts.ticket)
        except (StoreLostWrites, *UNREADABLE) as error:
            facts.findings.append(Finding(about=f"claim of ticket {facts.ticket}", told=told_by(error)))
            facts.unread.append(Entry("claims", facts.ticket))
            return None
        facts.num_read += base is not None
        return base

    def _slot(self, facts: TicketFacts, topic: Topic, read: Callable[[TicketFacts, pa.Buffer, str], T]) -> T | None:
        key = topic.key(facts.ticket)
        try:
            data = topic.read(facts.ticket)
            found = None if data is None else read(facts, data, key)
        except (StoreLostWrites, *UNREADABLE) as error:
            facts.findings.append(Finding(about=key, told=told_by(error)))
            facts.unread.append(Entry(topic.name, facts.ticket))
            return None
        facts.num_read += found is not None
        return found

    def _group(self, facts: TicketFacts, data: pa.Buffer, key: str) -> GroupFacts:
        table, told = read_table(data, GROUP_SCHEMA, "group", key)
        self._same_ticket(facts, key, told["ticket"], table)
        sequences = None
        if self._deep:
            group = group_from_arrow(data, key)
            sequences = tuple(
                tuple(sequence.num_trained for sequence in sequences) for sequences in group.completions_sequences
            )
        return _group_facts(table, told, sequences)

    def _scores(self, facts: TicketFacts, data: pa.Buffer, key: str) -> ScoreFacts:
        scored, about = scored_from_arrow(data, key), f"ticket {facts.ticket}"
        if scored.ticket != facts.ticket:
            facts.findings.append(Finding(about=key, told=f"expected ticket {facts.ticket}, found {scored.ticket}"))
        if facts.group is not None:
            odd = odd_scores(facts.group, scored, self._rules)
            facts.findings += [Finding(about=about, told=told) for told in odd]
        return _score_facts(scored, read_table(data, SCORED_SCHEMA, "scored", key)[1])

    def _same_ticket(self, facts: TicketFacts, key: str, ticket: int, table: pa.Table) -> None:
        found = {ticket, *table.column("ticket").to_pylist()}
        if found != {facts.ticket}:
            facts.findings.append(Finding(about=key, told=f"expected ticket {facts.ticket}, found {sorted(found)}"))
        numbers = table.column("rollout_index").to_pylist()
        if numbers != list(range(len(table))):
            told = f"expected rollouts 0 to {len(table) - 1}, each once; found {numbers}"
            facts.findings.append(Finding(about=key, told=told))

    def _compare(self, facts: TicketFacts) -> None:
        """Claim, group and scores are of the same rollouts."""
        group, scores = facts.group, facts.scores
        if group is None:
            return
        about = f"ticket {facts.ticket}"
        if group.claim_try == 0 and facts.claim not in (None, group.base):
            told = f"it is claimed under base {facts.claim}, its group says {group.base}; expected the same"
            facts.findings.append(Finding(about=about, told=told))
        if group.sequences is not None and scores is not None:
            counted = tuple(sum(trained > 0 for trained in own) for own in group.sequences)
            if counted != scores.num_sequences:
                told = f"its tokens make {list(counted)} sequences, its scores say {list(scores.num_sequences)}"
                facts.findings.append(Finding(about=about, told=f"{told}; expected the same"))


def _group_facts(table: pa.Table, told: dict[str, Any], sequences: tuple[tuple[int, ...], ...] | None) -> GroupFacts:
    prompt, completions = told["prompt"], tuple(_lengths(table, "completion_ids"))
    known = {**told, **(told.get("pace") or {}), "num_rollouts": len(table), "prompt_id": prompt["id"]}
    known |= {name: prompt[name] for name in ("environment", "epoch", "row_index")}
    columns: dict[str, Any] = {
        **{name: table.column(name).to_pylist() for name in _ROLLOUT_COLUMNS},
        "num_completion_tokens": completions,
    }
    turns = tuple(_lengths(table, "turns"))
    columns |= {"own_reward": columns["reward"], "own_columns": columns["columns"], "num_turns": turns}
    stays = [stay or {} for stay in columns["stay"]]
    columns |= {name: [stay.get(field) for stay in stays] for name, field in _OF_STAYS.items()}
    return GroupFacts(
        prompt_id=prompt["id"],
        sampler=_sampler(told),
        base=told["base"],
        refusal=told["refusal"],
        filtered=told.get("filtered", False),
        completions=completions,
        turns=turns,
        own_rewards=tuple(columns["reward"]),
        paid=_paid(columns["stay"], columns["stop_reason"]),
        failed=tuple(reason in UNANSWERED for reason in columns["stop_reason"]),
        claim_try=told["claim_try"],
        epoch=prompt["epoch"],
        row_index=prompt["row_index"],
        sequences=sequences,
        row=_row("groups", known),
        rollouts=list(zip(*(columns[name] for name in SLOT_COLUMNS["rollouts"].split(", ")), strict=True)),
        turn_rows=_turn_rows(table),
        tool_calls=[
            _row("tool_calls", {**call, "ticket": ticket, "rollout_index": index, "call_index": place})
            for ticket, index, calls in zip(*(columns[name] for name in _CALLS_OF), strict=True)
            for place, call in enumerate(calls or [])
        ],
    )


def _turn_rows(table: pa.Table) -> list[Row]:
    """Of each turn when it was asked for and how long it took; its tokens stay where they are."""
    turns = table.column("turns").combine_chunks()
    each = turns.flatten()
    kept = [
        each.field(name).to_pylist() if each.type.get_field_index(name) >= 0 else [None] * len(each) for name in _TIMES
    ]
    times, owners = zip(*kept, strict=True), zip(table.column("ticket"), table.column("rollout_index"), strict=True)
    return [
        (ticket.as_py(), rollout.as_py(), place, *next(times))
        for (ticket, rollout), length in zip(owners, _lengths(table, "turns"), strict=True)
        for place in range(length)
    ]


_TIMES = ("begun_seconds", "duration_seconds")
_OF_STAYS = {
    "environment_class": "environment",
    "reset_seconds": "reset_seconds",
    "get_reward_seconds": "reward_seconds",
}
_CALLS_OF = ("ticket", "rollout_index", "tool_calls")
_ROLLOUT_COLUMNS = [
    name for name in GROUP_SCHEMA.names if name not in ("completion", "completion_ids", "turns", "prompt")
]


def _paid(stays: list[dict[str, Any] | None], reasons: list[str]) -> dict[str, tuple[float | None, ...]]:
    """What environments gave the rollouts of a group, where they were asked; those that failed were not."""
    asked = {stay["environment"] for stay in stays if stay and stay["reward_seconds"] is not None}
    given = tuple(
        None if stay is None or reason in UNANSWERED else stay["reward"]
        for stay, reason in zip(stays, reasons, strict=True)
    )
    return dict.fromkeys(asked, given)


def _score_facts(scored: ScoredGroup, told: dict[str, Any]) -> ScoreFacts:
    rewards = [None if math.isnan(reward) else reward for reward in scored.rewards]
    names = {"seconds": "score_seconds", "wait_seconds": "score_wait_seconds", "queue_size": "score_queue_size"}
    scoring = {names[key]: value for key, value in (told.get("scoring") or {}).items() if key in names}
    return ScoreFacts(
        sampler=_sampler(told),
        ordinal=scored.ordinal,
        marks=scored.marks,
        left_out_by=scored.left_out_by,
        rewards=tuple(scored.rewards),
        group_rewards=GroupRewards.of(scored.scores, scored.rewards),
        truncated=tuple(scored.truncated),
        num_sequences=tuple(scored.num_sequences),
        num_forwarded=tuple(scored.num_forwarded_tokens),
        row=_row("scored_groups", {**told, **scoring, "marks": tuple(told["marks"])}),
        scores=[(scored.ticket, index, reward, scored.duplicates[index]) for index, reward in enumerate(rewards)],
        reward_rows=[
            (scored.ticket, index, one.reward, one.weight, one.values[index], one.errors[index], one.duration_seconds)
            for index in range(len(rewards))
            for one in scored.scores
        ],
        extras=[
            (scored.ticket, index, one.reward, name, text_of(values[index]), number_of(values[index]))
            for index in range(len(rewards))
            for one in scored.scores
            for name, values in one.extras.items()
        ],
        metrics=[
            (scored.ticket, one.reward, name, value) for one in scored.scores for name, value in one.metrics.items()
        ],
    )


def _sampler(told: dict[str, Any]) -> Sampler:
    """As `RolloutGroup` has it, where the record says nothing."""
    return told["model_version"], told.get("model_attempt", 0), told.get("model_step"), told.get("model_ordinal")


def _row(table: str, told: dict[str, Any]) -> Row:
    return tuple(told.get(name) for name in SLOT_COLUMNS[table].split(", "))


def _lengths(table: pa.Table, column: str) -> list[int]:
    """Of the lists of a column."""
    return [length for lists in table.column(column).chunks for length in lists.value_lengths().to_pylist()]


def _expect(look: Look, facts: TicketFacts) -> None:
    ticket, group, scores = facts.ticket, facts.group, facts.scores
    if facts.claim is not None:
        look.expect(Entry("claims", ticket), claims=[(ticket,)])
    if group is not None:
        look.expect(
            Entry("groups", ticket),
            groups=[group.row],
            rollouts=group.rollouts,
            turns=group.turn_rows,
            tool_calls=group.tool_calls,
        )
    if scores is not None:
        look.expect(
            Entry("scored", ticket),
            scored_groups=[scores.row],
            scores=scores.scores,
            rewards=scores.reward_rows,
            reward_extras=scores.extras,
            reward_metrics=scores.metrics,
        )
