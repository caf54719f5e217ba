from __future__ import annotations

import pytest
import torch

from agrpo.aggregations import aggregations
from agrpo.records.tokens import StepTotals, TokenInputs

# Sample A: 2 tokens with loss 1. Sample B: 6 tokens with loss 2.
LENGTHS, LOSSES = {"A": 2, "B": 6}, {"A": 1.0, "B": 2.0}
TOTALS = StepTotals(num_tokens=8, num_samples=2, max_completion_length=10)


def share(name: str, samples: str) -> float:
    """The share of a micro-batch of these samples in the step of A and B."""
    lengths = torch.tensor([LENGTHS[sample] for sample in samples])
    owner = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    loss = torch.tensor([LOSSES[sample] for sample in samples])[owner]
    tokens = TokenInputs(logprobs=loss, sampler_logprobs=loss, advantages=loss, sample=owner, num_samples=len(samples))
    return aggregations.build(name, {})(loss, tokens, TOTALS).item()


@pytest.mark.spec("K29", "A-141")
@pytest.mark.parametrize(("name", "expected"), [("token_mean", 1.75), ("sequence_mean", 1.5), ("constant", 14 / 20)])
def test_step_loss_has_the_value_worked_by_hand(name: str, expected: float):
    assert share(name, "AB") == pytest.approx(expected, rel=1e-6)


@pytest.mark.spec("K29", "A-142", "A-143")
@pytest.mark.parametrize("name", aggregations.names())
@pytest.mark.parametrize("split", [("A", "B"), ("B", "A"), ("BA",)])
def test_step_loss_does_not_depend_on_the_split(name: str, split: tuple[str, ...]):
    assert sum(share(name, samples) for samples in split) == pytest.approx(share(name, "AB"), rel=1e-6)


@pytest.mark.spec("K28")
def test_masked_answer_does_not_dilute_the_token_mean():
    loss = torch.ones(4)
    tokens = TokenInputs(
        logprobs=loss, sampler_logprobs=loss, advantages=loss, sample=torch.zeros(4, dtype=torch.long), num_samples=2
    )
    totals = StepTotals(num_tokens=4, num_samples=2, max_completion_length=6)
    assert aggregations.build("token_mean", {})(loss, tokens, totals).item() == 1.0
