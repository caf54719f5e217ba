"""Verifying: one look at everything a run has written, and a second one where the first found something.

A run that goes on moves between two reads of one look. What is wrong stays wrong, so only what two looks find is a finding.
"""

from __future__ import annotations

from agrpo.audit.ancestry import read_ancestry
from agrpo.audit.archives import Written
from agrpo.audit.balance import Balance
from agrpo.audit.groups import read_groups
from agrpo.audit.kept import check_checkpoints, check_exports
from agrpo.audit.look import Look, Tell
from agrpo.audit.rows import check_database
from agrpo.audit.steps import read_steps
from agrpo.audit.terms import Terms
from agrpo.audit.tickets import check_tickets
from agrpo.audit.told import read_acknowledgements, read_events, read_hints, read_run, read_whatifs
from agrpo.audit.weights import check_versions, check_weights_on_disk, read_versions
from agrpo.queue.run_folder import RunFolder


def verify(folder: RunFolder, *, database: bool = True, deep: bool = False, tell: Tell = lambda *_: None) -> Balance:
    """Whether a run's books balance. `deep`: also join every group's tokens to sequences once more.

    `tell` hears how far a look is. Writes nothing. Raises `StoreError` where the folder cannot be reached.
    """
    first = _look(folder, database=database, deep=deep, tell=tell)
    if not first.findings:
        return Balance(lines=first.lines)
    second = _look(folder, database=database, deep=deep, tell=lambda what, *far: tell(f"{what}, again", *far))
    lasting = set(first.findings)
    return Balance(lines=second.lines, findings=[finding for finding in second.findings if finding in lasting])


def _look(folder: RunFolder, *, database: bool, deep: bool, tell: Tell) -> Look:
    """In the reverse of the order in which a run writes: whatever is read names only what was written before it."""
    look = Look(RunFolder.open(folder.url), tell)  # one that remembers nothing of the look before
    document = read_run(look)
    if document is None:  # nothing can be held against settings that are not known
        return look
    terms = Terms.of(document)
    ancestry = read_ancestry(look)
    versions = read_versions(look)
    books = read_steps(look, ancestry, terms, versions)
    written = Written.of(look)
    found = read_groups(look, written, books.log.consumed, rules=terms.mark_rules, deep=deep)
    if terms.advantage is None:
        look.line("advantages", 0, "compared: the part that the run names cannot be loaded here")
    if terms.filters is None:
        look.line("filters", 0, "asked again: one that the run names cannot be loaded here")
    if ancestry.whole:
        check_tickets(look, books, written, found, versions)
    check_versions(look, versions, books)
    check_weights_on_disk(look, versions, ancestry)
    check_checkpoints(look, books, versions, max(written.tickets, default=-1) + 1)
    check_exports(look, books, versions)
    read_acknowledgements(look, versions)
    read_events(look)
    read_hints(look)
    read_whatifs(look, terms, found)
    look.line("objects", look.num_read, "read whole")
    if database:
        check_database(look)
    return look
