"""The attempts of a run, how their histories join, and which step of which attempt a version's weights come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from agrpo.audit.look import Look
from agrpo.database.documents import add_attempt, add_base, add_rewind
from agrpo.database.ledger import Entry
from agrpo.queue.lineage import Member, Segment, lineage, members
from agrpo.queue.run_folder import StepKey
from agrpo.records.progress import Attempt, Base, Rewind, WeightsReady

Versions = dict[int, list[WeightsReady]]
"""The records of a version's number: several where an attempt published again what the one before it had not finished."""
_NAME = re.compile(r"[0-9]{6}\.json")


class Ancestry:
    """The bases as one look finds them. `whole`: the history can be followed to its beginning."""

    def __init__(self, bases: Mapping[int, Base], *, whole: bool) -> None:
        self.bases = bases
        self.whole = whole
        self.segments: list[Segment] = lineage(bases) if whole else []
        self.members: list[Member] = members(bases) if whole else []
        """Newest first."""

    def is_live(self, key: StepKey) -> bool:
        """Whether the step of this attempt is part of the history."""
        return any(
            segment.attempt == key.attempt
            and segment.first <= key.step
            and (segment.last is None or key.step <= segment.last)
            for segment in self.segments
        )

    @property
    def is_straight(self) -> bool:
        """Whether the run never left a step behind, so that its versions are numbered without a gap."""
        return all(
            base.first_ticket is None and (base.void or base.adopted_through == base.base_step)
            for base in self.bases.values()
        )

    def inherited_version(self, attempt: int, versions: Versions) -> int:
        """The newest version that counted when an attempt took its history over, or that it published for it."""
        if attempt not in self.bases:
            return 0
        chain = members({number: base for number, base in self.bases.items() if number <= attempt})
        through = {member.attempt: member.through for member in chain} | {attempt: self.bases[attempt].base_step}
        found = [
            ready.version
            for records in versions.values()
            for ready in records
            if (last := through.get(ready.attempt, -1)) is None or ready.step <= last
        ]
        return max(found, default=0)

    def key_at(self, attempt: int, step: int) -> StepKey | None:
        """The step that an attempt carried out, or took over from an older one; None: of neither."""
        at: int | None = attempt
        while at is not None and (base := self.bases.get(at)) is not None:
            if step > base.base_step:
                return StepKey(at, step)
            at = base.parent
        return None

    def digest_at(self, attempt: int, step: int, digests: Mapping[StepKey, str]) -> str | None:
        """Of the weights that an attempt held after a step, its own or one it took over; None: no done record says."""
        key = self.key_at(attempt, step)
        return None if key is None else digests.get(key)


def read_ancestry(look: Look) -> Ancestry:
    """Attempts, bases and wishes to go back, checked against one another."""
    bases = _bases(look)
    attempts = look.folder.attempts()
    for number in attempts:
        _attempt(look, number)
    wishes = _wishes(look)
    for missing in sorted(set(range(max(attempts, default=-1) + 1)) - set(attempts)):
        look.find(f"attempt {missing}", f"expected attempts/{missing:06d}.json, since later attempts exist; found none")
    known = {number: base for number, base in bases.items() if base is not None}
    broken = [number for number, base in known.items() if not _joins(look, base, known)]
    for base in known.values():
        _check_base(look, base, known, wishes)
    for number in sorted(set(bases) - set(attempts)):
        look.find(f"bases/{number:06d}.json", f"expected attempts/{number:06d}.json, which it is of; found none")
    for number in sorted(set(range(max(bases, default=0))) - set(bases)):
        look.find(f"bases/{number:06d}.json", "expected it, void or not, since a later attempt has one; found none")
    whole = len(known) == len(bases) and not broken
    ancestry = Ancestry(known, whole=whole)
    chain = ", ".join(str(segment.attempt) for segment in ancestry.segments)
    look.line("attempts", len(attempts), f"the history is of {chain}" if chain else "no history yet")
    return ancestry


def _bases(look: Look) -> dict[int, Base | None]:
    found: dict[int, Base | None] = {}
    for name in filter(_NAME.fullmatch, look.folder.filesystem.list("bases")):
        key = f"bases/{name}"
        base = look.document(Base, key, Entry("bases", int(name.removesuffix(".json"))))
        found[int(name.removesuffix(".json"))] = base
        if base is not None:
            if base.attempt != int(name.removesuffix(".json")):
                look.find(
                    key, f"expected the base of attempt {name.removesuffix('.json')}, found that of {base.attempt}"
                )
            look.expect_record(Entry("bases", base.attempt), add_base, base)
    return found


def _wishes(look: Look) -> dict[int, Rewind | None]:
    """Wishes to go back, by number; None: one that cannot be read."""
    found: dict[int, Rewind | None] = {}
    for number in look.folder.rewinds():
        key, entry = f"rewinds/{number:06d}.json", Entry("rewinds", number)
        wish = found[number] = look.document(Rewind, key, entry)
        if wish is not None:
            look.expect_record(entry, add_rewind, wish)
            if wish.number != number:
                look.find(key, f"expected wish {number} to go back, found that of number {wish.number}")
    for missing in sorted(set(range(max(found, default=-1) + 1)) - set(found)):
        look.find(f"rewinds/{missing:06d}.json", "expected it, since later wishes to go back exist; found none")
    return found


def _check_base(look: Look, base: Base, bases: Mapping[int, Base], wishes: Mapping[int, Rewind | None]) -> None:
    """A base says what the history before it and the wish that it fulfils make it say."""
    key = f"bases/{base.attempt:06d}.json"
    if base.void or base.parent is None:
        if replace(base, attempt=0, void=False) != Base(attempt=0):
            look.find(key, "expected no history before it, since it is void or has no parent; it says some")
        return
    older = max((number for number, other in bases.items() if number < base.attempt and not other.void), default=None)
    if older is not None and base.parent < older:
        look.find(key, f"expected parent {older}, the newest living attempt before it; found {base.parent}")
    parent = bases.get(base.parent)
    least = base.base_step if base.rewind is not None or parent is None else max(base.base_step, parent.adopted_through)
    if base.adopted_through < least or (base.rewind is not None and base.adopted_through != least):
        look.find(key, f"expected groups up to step {least} to stay valid, it says up to {base.adopted_through}")
    if (base.rewind is None) != (base.first_ticket is None):
        look.find(key, f"it goes back by wish {base.rewind} and from ticket {base.first_ticket}; expected both or none")
    if base.rewind is None:
        if base.reissue or base.prompts or base.next_prompt:
            look.find(key, f"it does not go back; expected no ticket given up, found {base.reissue or base.prompts}")
        return
    wish = wishes.get(base.rewind)
    if base.rewind not in wishes:
        look.find(f"rewinds/{base.rewind:06d}.json", f"attempt {base.attempt} goes back by it; found none")
    elif wish is not None and wish.step < base.base_step:
        look.find(
            key, f"expected it to go back to step {wish.step}, as wish {wish.number} says; found {base.base_step}"
        )


def _attempt(look: Look, number: int) -> None:
    key = f"attempts/{number:06d}.json"
    attempt = look.document(Attempt, key, Entry("attempts", number))
    if attempt is not None:
        look.expect_record(Entry("attempts", number), add_attempt, attempt)
        if attempt.attempt != number:
            look.find(key, f"expected attempt {number}, found the record of attempt {attempt.attempt}")


def _joins(look: Look, base: Base, bases: Mapping[int, Base]) -> bool:
    """Whether the base's parent is there, older, and no void one."""
    if base.parent is None:
        return True
    parent = bases.get(base.parent)
    if parent is not None and not parent.void and parent.attempt < base.attempt:
        return True
    found = "none" if parent is None else "a void one" if parent.void else "one that is not older"
    look.find(f"bases/{base.attempt:06d}.json", f"expected a living base of its parent {base.parent}, found {found}")
    return False
