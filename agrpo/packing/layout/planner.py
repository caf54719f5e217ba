"""The planner: runs of a trie's branches, one a row, so that a step's rows are few, alike in cost, and share what they can.

Rows are runs of the line, so only the samples at a cut are forwarded with a prefix that another row has forwarded too.
"""

from __future__ import annotations

import math

import numpy as np

from agrpo.packing.layout.line import Line
from agrpo.packing.layout.trie import pairs

MICRO_BATCH_COST = 1 / 32
"""What one more micro-batch costs beside its tokens, in full rows: kernels are started, weights gathered anew."""
SLACK_OF_ONE, SLACK_OF_SEVERAL = 0.25, 0.05
"""How much costlier than in the evenest partition a row may be, for a cut that shares less. Several processes wait for the
costliest of their rows, one process for none."""


def plan_rows(line: Line, ranks: int) -> np.ndarray:
    """Cuts between the rows of a step, from 0 to the line's size: a row for every rank and micro-batch, if samples suffice.

    Of the numbers of micro-batches that the bounds allow, the one whose estimated time is least.
    """
    fewest = math.ceil(_count(line.ends()) / ranks)
    best, least = np.zeros(0, np.int64), math.inf
    for micro_batches in range(fewest, 2 * fewest + 1, max(1, fewest // 16)):
        overhead = micro_batches * MICRO_BATCH_COST * line.bounds.tokens
        if line.num_tokens / ranks + overhead >= least:
            break
        cuts = _cuts(line, min(micro_batches * ranks, line.size), SLACK_OF_ONE if ranks == 1 else SLACK_OF_SEVERAL)
        estimate = _slowest(line.tokens(cuts[:-1], cuts[1:]), ranks) + overhead
        if estimate < least:
            best, least = cuts, estimate
    return best


def by_rank(rows: list[list[int]], costs: np.ndarray, ranks: int) -> list[list[int]]:
    """The costliest first, `ranks` of them side by side in a micro-batch; empty rows where there are too few.

    Row `m * ranks + r` is that of rank `r` in micro-batch `m`. Rows of equal cost keep their order.
    """
    order = sorted(range(len(rows)), key=lambda row: -int(costs[row]))
    return [rows[row] for row in order] + [[] for _ in range(-len(rows) % ranks)]


def _slowest(tokens: np.ndarray, ranks: int) -> float:
    """Tokens that the ranks wait for: of each micro-batch, those of its longest row."""
    return float(np.sort(tokens)[::-1][::ranks].sum())


def _cuts(line: Line, num_rows: int, slack: float) -> np.ndarray:
    """Cuts into so many rows, no more than the samples and no fewer than the bounds need."""
    evenest = _evenest(line, num_rows)
    ends = line.ends(math.floor(evenest * (1 + slack)))
    needed = _needed(ends)
    cuts = [0]
    for left in range(num_rows - 1, 0, -1):
        first = max(cuts[-1] + 1, int(np.argmax(needed <= left)))
        last = min(int(ends[cuts[-1]]), line.size - left)
        cuts.append(_cheapest(line, cuts[-1], np.arange(first, last + 1), left))
    return np.array([*cuts, line.size])


def _cheapest(line: Line, start: int, places: np.ndarray, left: int) -> int:
    """Of these places the one where least is shared; of several the one that leaves most evenly to the rows after it."""
    least = line.shared[places].min()
    places = places[line.shared[places] == least]
    row = line.cost(np.full_like(places, start), places)
    again = (left - 1) * pairs(least)  # as if every cut to come shared as much
    rest = line.cost(places, np.full_like(places, line.size)) + again
    return int(places[np.abs(row * left - rest).argmin()])


def _evenest(line: Line, num_rows: int) -> int:
    """Least attention cost of the costliest row among all partitions into so many rows."""
    low, high = max(line.costliest, -(-line.total_cost // num_rows)), line.total_cost
    while low < high:
        middle = (low + high) // 2
        if _count(line.ends(middle)) <= num_rows:
            high = middle
        else:
            low = middle + 1
    return low


def _count(ends: np.ndarray) -> int:
    """Fewest rows for all samples."""
    count = place = 0
    while place < len(ends):
        place = ends[place]
        count += 1
    return count


def _needed(ends: np.ndarray) -> np.ndarray:
    """Fewest rows for the samples from each place on; 0 at the end."""
    needed = np.zeros(len(ends) + 1, np.int64)
    for place in range(len(ends) - 1, -1, -1):
        needed[place] = needed[ends[place]] + 1
    return needed
