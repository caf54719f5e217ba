"""Versions and weights: whatever is on the disk holds the weights of the step that it names."""

from __future__ import annotations

from collections import defaultdict

from agrpo.audit.ancestry import Ancestry, Versions
from agrpo.audit.look import Look
from agrpo.audit.steps import Books
from agrpo.database.documents import add_version
from agrpo.database.ledger import Entry
from agrpo.errors import StoreError
from agrpo.records.progress import WeightsForm, WeightsReady
from agrpo.weights import lora
from agrpo.weights.filesystem import WEIGHTS
from agrpo.weights.published import check_published

_FILES = {WeightsForm.FULL: WEIGHTS, WeightsForm.ADAPTER: lora.WEIGHTS}


def read_versions(look: Look) -> Versions:
    """Every version record of every attempt. To be read before the step log, so that each has its done record."""
    found: defaultdict[int, list[WeightsReady]] = defaultdict(list)
    for attempt in look.folder.attempts():
        for number in look.folder.versions(attempt):
            key = _key(attempt, number)
            entry = Entry(f"versions/{attempt}", number)
            ready = look.read(key, lambda attempt=attempt, number=number: look.folder.version(attempt, number), entry)
            if ready is None:
                continue
            found[number].append(ready)
            look.expect_record(entry, add_version, ready)
            if (ready.attempt, ready.version) != (attempt, number):
                look.find(
                    key,
                    f"expected version {number} of attempt {attempt}, found version {ready.version} of attempt {ready.attempt}",
                )
    return dict(found)


def check_versions(look: Look, versions: Versions, books: Books) -> None:
    """A number names one content, which is that of the done step that publishes it."""
    log = books.log
    first = {ready.trained_digest for records in versions.values() for ready in records if ready.step == 0}
    for number, records in sorted(versions.items()):
        if len({ready.digest for ready in records}) > 1:
            told = ", ".join(f"{ready.digest} (attempt {ready.attempt})" for ready in records)
            look.find(f"version {number}", f"expected one content for ever, found {told}")
        for ready in records:
            _check_version(look, ready, books)
    if log.begins_from and first and log.begins_from not in first:
        look.find(
            "step 1", f"its plan begins from weights {log.begins_from}; expected those of version 0, {min(first)}"
        )
    for number, key in sorted(log.published.items()):
        if number not in versions and key.step < log.last and not look.cannot_read("versions", number):
            look.find(
                f"version {number}",
                f"step {key.step} (attempt {key.attempt}) publishes it and step {log.last} is done; expected its record, "
                "found none",
            )
    look.line("versions", len(versions), f"newest {max(versions)}" if versions else "none published")


def _check_version(look: Look, ready: WeightsReady, books: Books) -> None:
    key = _key(ready.attempt, ready.version)
    if (ready.step == 0) != (ready.version == 0):
        look.find(key, f"it names step {ready.step}; expected step 0 of version 0, and of no other")
    elif ready.step > 0 and books.ancestry.whole:
        digest = books.ancestry.digest_at(ready.attempt, ready.step, books.log.digests)
        if digest != ready.trained_digest:
            found = f"whose done record has {digest}" if digest else "which has no done record"
            look.find(key, f"it holds weights {ready.trained_digest} of step {ready.step}, {found}; expected the same")
        _check_publish(look, key, ready, books)
    if not ready.folder.endswith(f"{ready.version:08d}-{ready.digest[:16]}"):
        look.find(
            key, f"expected a folder of version {ready.version} and digest {ready.digest[:16]}, found {ready.folder}"
        )


def _check_publish(look: Look, key: str, ready: WeightsReady, books: Books) -> None:
    """The step that it names publishes this number, with this ordinal."""
    at = books.ancestry.key_at(ready.attempt, ready.step)
    publish, ordinal = books.log.publishes.get(at, (None, None)) if at is not None else (None, None)
    if at is None or at not in books.log.publishes:
        return
    if publish != ready.version and not _was_gone_back_to(ready, books):
        told = "nothing" if publish is None else f"version {publish}"
        look.find(
            key,
            f"it names step {at.step} of attempt {at.attempt}, whose plan publishes {told}; expected {ready.version}",
        )
    if None not in (ordinal, ready.ordinal) and ordinal != ready.ordinal:
        look.find(key, f"it says ordinal {ready.ordinal}, the plan of its step {ordinal}; expected the same")


def _was_gone_back_to(ready: WeightsReady, books: Books) -> bool:
    """Whether an attempt published the weights it took over once more, under a number that no plan names."""
    base = books.ancestry.bases.get(ready.attempt)
    numbers = (publish for publish, _ in books.log.publishes.values())
    return (
        base is not None
        and base.first_ticket is not None
        and ready.step == base.base_step
        and ready.version not in numbers
    )


def check_weights_on_disk(look: Look, versions: Versions, ancestry: Ancestry) -> None:
    """Published weights that are kept have the digest of their record; the newest version's are among them."""
    records = {ready.folder: ready for found in versions.values() for ready in found}
    names = [f"weights/{name}" for name in look.folder.filesystem.list("weights")]
    num_whole = 0
    for number, name in enumerate(names):
        num_whole += _check_folder(look, name, records.get(name))
        look.tell("weights", number + 1, len(names))
    chain = {member.attempt: member.through for member in ancestry.members}
    counting = [ready for ready in records.values() if _counts(ready, chain)]
    newest = max(counting, key=lambda ready: ready.version, default=None)
    if newest is not None and newest.folder not in names:
        look.find(newest.folder, f"version {newest.version} is the newest; expected its weights, found no such folder")
    look.line("weights", num_whole, "published versions kept, each with its digest")


def _counts(ready: WeightsReady, chain: dict[int, int | None]) -> bool:
    if ready.attempt not in chain:
        return False
    through = chain[ready.attempt]
    return through is None or ready.step <= through


def _check_folder(look: Look, name: str, ready: WeightsReady | None) -> bool:
    """Whether the folder is whole. Of one that no version names yet nothing is known."""
    folder = look.folder.filesystem.local_folder(name)
    if folder is None:  # deleted meanwhile, or not uploaded whole
        return False
    try:
        if ready is not None:
            check_published(folder, ready)
    except StoreError as error:
        if folder.is_dir():
            look.find(name if ready is None else f"{name}/{_FILES[ready.form]}", str(error))
        return False
    look.num_read += 1
    return True


def _key(attempt: int, number: int) -> str:
    return f"versions/{attempt:06d}/{number:08d}.json"
