"""What else is in a run: its settings, acknowledgements, events, hints and what-ifs, each read whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from agrpo.audit.ancestry import Versions
from agrpo.audit.groups import TicketFacts
from agrpo.audit.look import Look, counted
from agrpo.audit.terms import Terms
from agrpo.database.documents import add_acknowledgement, add_event, add_run
from agrpo.database.ledger import Entry
from agrpo.database.whatifs import add_whatif, add_whatif_group
from agrpo.queue.topic import Topic
from agrpo.queue.whatifs import WhatIfs
from agrpo.records.amendment import Amendment
from agrpo.records.progress import Acknowledgement, Hint
from agrpo.records.whatif import WhatIfGroup, optional, whatif_from_arrow


def read_run(look: Look) -> dict[str, Any] | None:
    """`run.json`, None where it is damaged; and the amendments of its settings."""
    document = look.read("run.json", look.folder.document)
    for name in look.folder.filesystem.list("settings"):
        look.document(Amendment, f"settings/{name}")
    if document is not None:
        look.expect_record(Entry("run", 0), lambda batch, began: add_run(batch, "", began), look.folder.run_json())
    return document


def read_acknowledgements(look: Look, versions: Versions) -> None:
    """An engine acknowledges only what was published."""
    num_read = 0
    for engine in look.folder.engines():
        for name in look.folder.filesystem.list(f"acks/{engine}"):
            key = f"acks/{engine}/{name}"
            entry = Entry(f"acknowledgements/{engine}", int(name.removesuffix(".json")))
            ack = look.document(Acknowledgement, key, entry)
            if ack is None:
                continue
            num_read += 1
            look.expect_record(entry, add_acknowledgement, ack)
            if (ack.engine, ack.version) != (engine, entry.number):
                look.find(key, f"expected version {entry.number} of {engine}, found {ack.version} of {ack.engine}")
            if ack.version not in versions and not look.cannot_read("versions", ack.version):
                look.find(key, f"version {ack.version} is acknowledged; expected its record, found none")
    look.line("acknowledgements", num_read)


def read_events(look: Look) -> None:
    """Every stream, numbered without a gap."""
    num_read = 0
    streams = look.folder.event_streams()
    for place, stream in enumerate(streams):
        numbers = look.folder.event_numbers(stream)
        for missing in sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers)):
            look.find(f"events/{stream}", f"expected event {missing}, since later ones exist; found none")
        for number in numbers:
            key = f"events/{stream}/{number:08d}.json"
            entry = Entry(f"events/{stream}", number)
            event = look.read(key, lambda stream=stream, number=number: look.folder.event(stream, number), entry)
            if event is not None:
                num_read += 1
                look.expect_record(entry, add_event, event)
                if (event.stream, event.number) != (stream, number):
                    look.find(key, f"expected event {number} of {stream}, found {event.number} of {event.stream}")
        look.tell("events", place + 1, len(streams))
    look.line("events", num_read)


def read_hints(look: Look) -> None:
    """What is overwritten must be readable too, or a stage that waits for it fails."""
    look.document(Hint, "hint/run_ahead.json")
    for name in look.folder.filesystem.list("beat"):
        data = look.folder.filesystem.get(f"beat/{name}")
        if data is not None:
            look.read(f"beat/{name}", lambda data=data: json.loads(bytes(data)))


def read_whatifs(look: Look, terms: Terms, found: Mapping[int, TicketFacts]) -> None:
    """What was asked of the run beside its history; what it says was before is what is recorded."""
    whatifs = WhatIfs(look.folder.filesystem)
    names = whatifs.names()
    num_groups = 0
    for name in names:
        entry = Entry(f"whatifs/{name}", 0)
        asked = look.read(f"whatif/{name}.json", lambda name=name: whatifs.read(name), entry)
        if asked is not None:
            look.expect_record(entry, add_whatif, asked)
        topic = whatifs.groups(name)
        for ticket in topic.numbers():
            group = _read_whatif_group(look, name, topic, ticket)
            num_groups += group is not None
            if group is not None and ticket in found:
                _check_before(look, topic.key(ticket), group, found[ticket], terms)
    if names:
        look.line("what-ifs", len(names), f"over {counted(num_groups, 'group')}")


def _read_whatif_group(look: Look, name: str, topic: Topic, ticket: int) -> WhatIfGroup | None:
    key, data, entry = topic.key(ticket), topic.read(ticket), Entry(f"whatif/{name}", ticket)
    if data is None:
        return None
    group = look.read(key, lambda: whatif_from_arrow(data, key), entry)
    if group is not None:
        look.expect_record(entry, partial(add_whatif_group, name), data)
        if group.ticket != ticket:
            look.find(key, f"expected ticket {ticket}, found {group.ticket}")
    return group


def _check_before(look: Look, key: str, group: WhatIfGroup, facts: TicketFacts, terms: Terms) -> None:
    if facts.scores is None:
        return
    recorded = [optional(reward) for reward in facts.scores.rewards]
    found = [rollout.reward_before for rollout in group.rollouts]
    if recorded != found:
        look.find(key, f"it says that the rewards were {found}; expected the recorded ones, {recorded}")
        return
    if terms.advantage is None or terms.advantage.spans_step:
        return
    if not any(reward is not None and math.isinf(reward) for reward in recorded):
        (advantages,) = terms.advantage([facts.scores.group_rewards])
        before = [rollout.advantage_before for rollout in group.rollouts]
        if [float(advantage) for advantage in advantages] != before:
            look.find(
                key, f"it says that the advantages were {before}; the recorded rewards give {advantages.tolist()}"
            )
