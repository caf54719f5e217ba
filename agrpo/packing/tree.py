"""A prefix trie in a row: a prefix that samples share is forwarded once."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Annotated

import numpy as np
from pydantic import Field

from agrpo.packing.layout.line import Bounds, Line
from agrpo.packing.layout.planner import by_rank, plan_rows
from agrpo.packing.layout.terms import row_of
from agrpo.packing.layout.trie import lay_out, trie_of
from agrpo.records.batch import Row
from agrpo.records.sample import Sample
from agrpo.registry import part


@part
class Tree:
    """Forked exactly where samples part, in DFS pre-order; samples that share most lie side by side."""

    max_gathered: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 8.0
    """Most keys that attention gathers for a row, in `step.micro_tokens`: a prefix is gathered again for every branch that
    continues it. Memory of attention grows with it; rows of many deep branches stay shorter."""

    def place(self, samples: Several[Sample], micro_tokens: int, ranks: int = 1) -> list[list[int]]:
        """Rows of sample numbers, alike in attention cost; costliest first."""
        if not samples:
            return []
        trie = trie_of([sample.sequence.tokens for sample in samples])
        assert trie.lengths.max() <= micro_tokens, (
            f"a sample has {trie.lengths.max()} tokens, a row holds {micro_tokens}: drop it before placing"
        )
        terms = np.array([samples[number].sequence.num_trained for number in trie.order], np.int64)
        bounds = Bounds(tokens=micro_tokens, terms=micro_tokens, gathered=int(self.max_gathered * micro_tokens))
        line = Line(trie, terms, bounds)
        cuts = plan_rows(line, ranks)
        rows = [sorted(row.tolist()) for row in np.split(trie.order, cuts[1:-1])]
        return by_rank(rows, line.cost(cuts[:-1], cuts[1:]), ranks)

    def lay_out(self, samples: Several[Sample]) -> Row:
        """One row holding these samples; its terms are in their order."""
        return row_of(samples, lay_out(trie_of([sample.sequence.tokens for sample in samples])))
