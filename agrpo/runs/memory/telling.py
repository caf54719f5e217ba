"""The plan of memory as people read it: a table, a refusal with what to lower, a warning."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

from agrpo.runs.memory.parts import MIB, ROW
from agrpo.runs.memory.plan import TIGHT, MemoryPlan, Place
from agrpo.runs.memory.rows import RowSize

ROUND = 256
"""Numbers of tokens that are recommended are multiples of it."""
VARIABLE = "AGRPO_MEMORY"
"""Of the environment: what becomes of a run that cannot fit."""
REFUSE, WARN = "refuse", "warn"


def lines(plan: MemoryPlan) -> list[str]:
    """A table: each part of each process at its fullest, place by place, and what there is."""
    told: list[str] = []
    for place in plan.places:
        told.append(_heading(place))
        told += [f"  {_size(part.likely):>9}  {part.process:<10} {part.what}" for part in place.parts]
    return told + [f"  {sentence}" for sentence in _not_known(plan)]


def headings(plan: MemoryPlan) -> list[str]:
    """The table without its parts: a line for each place, and for all that is not known."""
    return [*(_heading(place) for place in plan.places), *(f"memory: {sentence}" for sentence in _not_known(plan))]


def problems(plan: MemoryPlan) -> list[str]:
    """A sentence for each place where not even the least would fit. None where that is not sure, or `AGRPO_MEMORY` is warn."""
    asked = os.environ.get(VARIABLE) or REFUSE
    if asked not in (REFUSE, WARN):
        return [f'{VARIABLE} = "{asked}": expected {WARN}, which begins a run that cannot fit, or {REFUSE}']
    if not _refuses(plan):
        return []
    return [
        f"memory: {_least(place)}; {_advice(place, plan.row)}, or begin all the same with {VARIABLE}={WARN} in the environment"
        for place in plan.places
        if not place.fits
    ]


def warnings(plan: MemoryPlan) -> list[str]:
    """A sentence for each place that may be too small when everything is at its fullest, and is not refused."""
    told: list[str] = []
    for place in plan.places:
        if place.fits and place.tight:
            told.append(
                f"memory: this run takes about {_size(place.likely)} of {place.name} at its fullest, {_there(place)}: "
                f"{_parts(place)}; {_advice(place, plan.row)}"
            )
        elif not place.fits and not _refuses(plan):
            why = f"{VARIABLE} is {WARN}" if plan.doubt is None else f"the learner's GPUs are not known: {plan.doubt}"
            told.append(f"memory: {_least(place)}; {_advice(place, plan.row)}. It begins all the same, since {why}")
    return told


def _refuses(plan: MemoryPlan) -> bool:
    return plan.doubt is None and os.environ.get(VARIABLE) != WARN


def _heading(place: Place) -> str:
    return f"memory of {place.name}: {_size(place.likely)} at the fullest, {_there(place)}"


def _not_known(plan: MemoryPlan) -> list[str]:
    doubt = None if plan.doubt is None else f"the learner's GPUs are not known for sure: {plan.doubt}"
    return [*([f"not counted: {plan.unknown}"] if plan.unknown else []), *([doubt] if doubt else [])]


def _least(place: Place) -> str:
    return (
        f"this run takes at least {_size(place.least)} of {place.name}, which has {_size(place.memory.total)} "
        f"({_parts(place, least=True)}), and about {_size(place.likely)} at its fullest"
    )


def _there(place: Place) -> str:
    return f"where {_size(place.memory.free)} of {_size(place.memory.total)} are free"


def _parts(place: Place, *, least: bool = False) -> str:
    """Who takes how much, the largest first."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for part in place.parts:
        sizes[part.process] += part.least if least else part.likely
    return ", ".join(f"{name} {_size(size)}" for name, size in _largest_first(sizes))


def _advice(place: Place, row: RowSize) -> str:
    """What to lower, the largest part first."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for part in place.parts:
        for lower in part.lower:
            sizes[lower] += part.likely
    ways = [_way(lower, size, place, row) for lower, size in _largest_first(sizes) if size > 0.05 * place.likely]
    return f"try {', or '.join(ways[:3])}" if ways else "use a larger machine"


def _largest_first(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda item: -item[1])


def _way(lower: str, size: int, place: Place, row: RowSize) -> str:
    """How to lower it: of rows with the number that would fit, where one would."""
    if lower != ROW:
        return lower
    if row.tokens <= row.sequence:
        return "a smaller engine.max_completion_length"
    room = TIGHT * place.memory.free - (place.likely - size)
    fitting = int(row.tokens * room / size) // ROUND * ROUND
    return f"{ROW} = {fitting}" if fitting >= max(ROUND, row.sequence) else f"{ROW} below {row.tokens}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 1000 * MIB else f"{num_bytes / MIB:.0f} MiB"
