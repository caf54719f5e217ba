"""Checkpoints and exports: each is whole, as its manifest says, and holds the weights of a done step."""

from __future__ import annotations

import re
from pathlib import Path

from agrpo.audit.ancestry import Versions
from agrpo.audit.look import Look
from agrpo.audit.plans import Totals
from agrpo.audit.steps import Books
from agrpo.checkpoints.manifest import MANIFEST, verified
from agrpo.errors import CheckpointError, StoreError
from agrpo.records.manifest import CheckpointManifest
from agrpo.records.progress import CheckpointState
from agrpo.stages.exporting import ADAPTER
from agrpo.weights import lora
from agrpo.weights.filesystem import WEIGHTS, check_weights, digest_in

_NAME = re.compile(r"[0-9]{8}-[0-9]{6}")
LAST = "model"
"""Folder of the model at the end of the run."""


def check_checkpoints(look: Look, books: Books, versions: Versions, next_ticket: int) -> None:
    """Each is whole, of a done step, and its counters are those of the plans up to it.

    `next_ticket`: above every ticket that was claimed.
    """
    names = list(filter(_NAME.fullmatch, look.folder.filesystem.list("checkpoints")))
    steps: list[int] = []
    for number, name in enumerate(names):
        key = f"checkpoints/{name}"
        folder = look.folder.filesystem.local_folder(key)
        state = None if folder is None else _read_checkpoint(look, key, folder, books)
        if state is not None:
            steps.append(state.step)
            if name != f"{state.step:08d}-{state.attempt:06d}":
                look.find(
                    key, f"it says it is of step {state.step} of attempt {state.attempt}; expected what its name says"
                )
            _check_state(look, key, state, books, versions)
            if state.next_ticket is not None and state.next_ticket > next_ticket:
                look.find(
                    key, f"it knows tickets up to {state.next_ticket}; only those below {next_ticket} are claimed"
                )
        look.tell("checkpoints", number + 1, len(names))
    look.line("checkpoints", len(steps), f"of steps {', '.join(map(str, steps))}" if steps else "none whole")


def _read_checkpoint(look: Look, key: str, folder: Path, books: Books) -> CheckpointState | None:
    try:
        manifest = verified(folder)
        check_weights(folder, manifest.digest)
    except (CheckpointError, StoreError) as error:
        if folder.is_dir():  # else deleted meanwhile, as old ones are
            look.find(key, str(error))
        return None
    look.num_read += 1
    _check_identity(look, key, manifest, books)
    state = manifest.state
    if state is None:
        look.find(key, "it says nothing of where the run stood; expected that of a checkpoint")
    elif (state.step, state.digest) != (manifest.step, manifest.digest):
        look.find(
            key,
            f"it stands at step {state.step} with weights {state.digest}, its manifest says step {manifest.step} with "
            f"{manifest.digest}; expected the same",
        )
    return state


def _check_identity(look: Look, key: str, manifest: CheckpointManifest, books: Books) -> None:
    if books.terms.identity not in (None, manifest.run):
        look.find(key, f"it is of the run {manifest.run}; expected {books.terms.identity}")


def _check_state(look: Look, key: str, state: CheckpointState, books: Books, versions: Versions) -> None:
    ancestry, log = books.ancestry, books.log
    if state.step == 0:
        digests = {ready.trained_digest for ready in versions.get(0, [])}
        if digests and state.digest not in digests:
            look.find(key, f"it holds weights {state.digest} of step 0; expected those of version 0, {min(digests)}")
    else:
        digest = ancestry.digest_at(state.attempt, state.step, log.digests)
        if ancestry.whole and digest != state.digest:
            found = f"whose done record has {digest}" if digest else "which has no done record"
            look.find(key, f"it holds weights {state.digest} of step {state.step}, {found}; expected the same")
    if not any(member.attempt == state.attempt and _within(state.step, member.last) for member in ancestry.members):
        return
    consumed = {ticket for ticket, one in log.consumed.items() if one.step <= state.step}
    held = {*range(state.floor), *state.consumed}
    for ticket in sorted(consumed ^ held):
        told = (
            "it holds the ticket as consumed, and no plan"
            if ticket in held
            else "it does not hold the ticket, and a plan"
        )
        look.find(key, f"ticket {ticket}: {told} up to step {state.step} consumes it; expected the same")
    if held and state.next_ticket is not None and state.next_ticket <= max(held):
        look.find(key, f"it knows tickets below {state.next_ticket} and holds {max(held)} as consumed")
    totals = log.totals.get(state.step)
    if totals is not None:
        _check_totals(look, key, state, totals)
        known = totals.versions | {ancestry.inherited_version(state.attempt, versions)}
        if state.version not in known:
            newest = " or ".join(map(str, sorted(known)))
            look.find(key, f"expected version {newest} as the newest up to step {state.step}, it says {state.version}")


def _check_totals(look: Look, key: str, state: CheckpointState, totals: Totals) -> None:
    for name, what in _COUNTED.items():
        expected, found = getattr(totals, name), getattr(state, name)
        if found is not None and expected != found:
            look.find(key, f"expected {expected} {what} up to step {state.step}, it says {found}")


_COUNTED = {
    "num_tokens": "forwarded tokens",
    "num_prompts": "prompts",
    "num_replaced": "groups that took no place",
    "num_void": "void tickets",
    "ordinal": "publishes",
}


def _within(step: int, last: int | None) -> bool:
    return last is None or step <= last


def check_exports(look: Look, books: Books, versions: Versions) -> None:
    """What users were given is whole, and holds the weights of a done step."""
    known = {*books.log.digests.values(), *(ready.trained_digest for records in versions.values() for ready in records)}
    names = [f"exports/{name}" for name in look.folder.filesystem.list("exports")]
    num_whole = sum(_check_export(look, key, known, books) for key in (LAST, *names))
    files = look.folder.filesystem.list(LAST)
    silent = files and MANIFEST not in files
    aside = f"; {LAST}/ has no {MANIFEST}, as runs of before had none: of its files only the weights were checked"
    look.line("exports", num_whole, "models for users, each of a done step" + (aside if silent else ""))


def _check_export(look: Look, key: str, known: set[str], books: Books) -> bool:
    folder = look.folder.filesystem.local_folder(key)
    if folder is None:
        return False
    digest = manifest = None
    try:
        if key != LAST or (folder / MANIFEST).is_file():
            manifest = verified(folder)
        file = _trained_file(folder)
        if file.is_file():  # large models are written in several files
            digest = digest_in(file)
    except (CheckpointError, StoreError) as error:
        if folder.is_dir():  # else replaced meanwhile
            look.find(key, str(error))
        return False
    if manifest is not None:
        _check_identity(look, key, manifest, books)
        expected = manifest.file_digest or manifest.digest
        if digest is not None and expected != digest:
            found = _trained_file(folder).relative_to(folder)
            look.find(f"{key}/{found}", f"it holds weights {digest}; its manifest says {expected}")
        digest = manifest.digest
    if digest is not None and digest not in known:
        found = _trained_file(folder).relative_to(folder)
        look.find(f"{key}/{found}", f"it holds weights {digest}; expected those of a done step, and none has them")
    look.num_read += 1
    return True


def _trained_file(folder: Path) -> Path:
    """Of an export, what its digest is of: the adapter where one was trained; the model it is merged into is beside it."""
    adapter = folder / ADAPTER / lora.WEIGHTS
    return adapter if adapter.is_file() else folder / WEIGHTS
