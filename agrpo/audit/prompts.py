"""Which prompt every group asks: the one that the data seed, its ticket and the bases give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agrpo.audit.groups import TicketFacts
from agrpo.audit.look import Look
from agrpo.audit.terms import Terms
from agrpo.prompts import DatasetRow, PromptOrder
from agrpo.queue.rewinds import Rewinds
from agrpo.records.progress import DropReason


def check_prompts(
    look: Look,
    terms: Terms,
    found: Mapping[int, TicketFacts],
    rewinds: Rewinds,
    void: Mapping[int, DropReason],
) -> None:
    """Of every group that counts, by its number in the data set. All claims must have been read."""
    if not terms.prompts_per_epoch:
        return
    order = PromptOrder(_Rows(terms.prompts_per_epoch), seed=terms.data_seed, shuffle=terms.shuffle)
    for ticket, facts in sorted(found.items()):
        group = facts.group
        if group is None or ticket in void or (group.refusal is not None and not group.prompt_id):
            continue
        expected = order.prompt(rewinds.prompt_of(ticket))
        if (expected.epoch, expected.row_index) != (group.epoch, group.row_index):
            look.find(
                f"ticket {ticket}",
                f"expected it to ask row {expected.row_index} in epoch {expected.epoch}, found row {group.row_index} in "
                f"epoch {group.epoch}",
            )


class _Rows(Sequence[DatasetRow]):
    """A data set of which only the size is known."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int | slice) -> DatasetRow:  # type: ignore[override]
        return {"prompt": [{"role": "user", "content": ""}]}
