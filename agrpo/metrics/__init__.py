"""Metrics: documented measures of one step, one family per page, each a function of recorded facts.

Names, units and definitions are those of docs/spec/async_grpo.md, sections 19 to 21; `names.py` lists them. Measures of
step k cover the groups that plan k consumed, trained and dropped, so every logged number equals SQL over that step's rows.
A measure with nothing to say is absent. `line.py` is a step in one line.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from agrpo.records.outcome import RowFacts, SampleOutcome
from agrpo.records.progress import Plan
from agrpo.records.score import ScoredGroup
from agrpo.records.timings import StepTimings

_NO_FAMILY = {"line", "names"}
"""Pages about measures, which measure nothing."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is known of a finished step."""

    plan: Plan
    consumed: list[ScoredGroup]
    """Groups the plan consumed, trained and dropped."""
    samples: list[SampleOutcome]
    rows: list[RowFacts]
    """Micro-batches as they were forwarded."""
    micro_tokens: int
    """Most tokens a row may hold."""
    loss: float
    grad_norm: float
    aux_loss: float | None = None
    """Of balancing the experts of a mixture, before its coefficient. None: there is no such loss."""
    policy_loss: float | None = None
    """The loss without the bonus for entropy. None: there is no bonus."""
    num_tokens: int
    """Tokens forwarded since the start of the run, this step's included."""
    timings: StepTimings
    has_tools: bool = False
    """Whether the run's rollouts may call tools."""
    peak_flops_per_second: float | None = None
    """Most that all training devices together can do. None: unknown."""
    num_generators: int = 1
    ratios_of_samples: bool = False
    """Whether an importance ratio is that of a whole sample, so that clipped ones are counted by samples."""
    corrections_of_samples: bool = False
    """The same of the correction's weights."""

    @property
    def num_forwarded_tokens(self) -> int:
        """Of this step's rows: a shared token counts once."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_trained_tokens(self) -> int:
        """Of all samples: a token that carries the loss of two counts twice."""
        return sum(sample.num_trained_tokens for sample in self.samples)

    @property
    def flops(self) -> int | None:
        """Of the rows' forward and backward passes; None: not known of every row."""
        known = [row.flops for row in self.rows if row.flops is not None]
        return sum(known) if len(known) == len(self.rows) else None


def mean(values: Iterable[float]) -> float | None:
    """None: there is nothing to average."""
    found = list(values)
    return fmean(found) if found else None


def weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    """Mean of per-sample means over their tokens. `weights`: tokens per sample, at least one in all."""
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def mean_of_samples(
    values: Sequence[float | None], samples: Sequence[SampleOutcome], *, by_samples: bool = False
) -> float | None:
    """Mean over trained tokens of the samples' means, or over samples. None: not known of every sample."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(samples):
        return None
    return weighted_mean(known, [1 if by_samples else sample.num_trained_tokens for sample in samples])


def extreme(reduction: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """`min` or `max` of what is known. None: nothing is."""
    known = [value for value in values if value is not None]
    return reduction(known) if known else None


def ratio(total: float, over: float) -> float | None:
    """None: there is nothing to divide by."""
    return total / over if over else None


def said(measures: Mapping[str, float | None]) -> dict[str, float]:
    """The measures that have something to say."""
    return {name: float(value) for name, value in measures.items() if value is not None}


def measure_step(facts: StepFacts) -> dict[str, float]:
    """All measures of a step, by documented name: what the `measure` of every family says.

    The weights have moved by then, and the step has to be told done: a family that fails is left out, with an error in
    the log.
    """
    measures: dict[str, float | None] = {}
    for name in _families():
        try:
            measures.update(importlib.import_module(f"{__name__}.{name}").measure(facts))
        except Exception:
            logger.exception("step %d goes without its measures of %s", facts.plan.step, name)
    return said(measures)


@cache
def _families() -> list[str]:
    return [page.name for page in pkgutil.iter_modules(__path__) if page.name not in _NO_FAMILY]


__all__ = ["StepFacts", "extreme", "mean", "mean_of_samples", "measure_step", "ratio", "said", "weighted_mean"]
