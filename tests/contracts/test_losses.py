"""What every loss and every aggregation promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agrpo.aggregations import aggregations
from agrpo.aggregations.token_mean import TokenMean
from agrpo.errors import RecordError
from agrpo.losses import losses
from agrpo.objective import Objective
from agrpo.records.tokens import StepTotals, TokenInputs, TopInputs
from agrpo.registry import knobs_of

EACH = pytest.mark.parametrize(("loss", "aggregation"), [(a, b) for a in losses.names() for b in aggregations.names()])


def inputs(lengths: list[int], first: int = 0, *, moved_by: float = 0.3) -> TokenInputs:
    """Random tokens of samples with these trained lengths; the same for the same `first` and lengths.

    `moved_by`: standard deviation of the policy's log-probs from the sampler's.

    The sampler's most likely tokens are the trained one and two more, of which the second is missing at every other place.
    """
    generator = torch.Generator().manual_seed(first)
    sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.long))
    sampler = -1.0 - torch.rand(len(sample), generator=generator, dtype=torch.float64)
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    moved = (sampler + moved_by * torch.randn(len(sample), generator=generator, dtype=torch.float64)).requires_grad_()
    top = torch.stack(
        [sampler, sampler - 2.0, (sampler - 3.0).index_fill(0, torch.arange(0, len(sample), 2), -torch.inf)], 1
    )
    return TokenInputs(
        logprobs=moved,
        sampler_logprobs=sampler,
        advantages=advantages[sample],
        sample=sample,
        num_samples=len(lengths),
        top=TopInputs(
            logprobs=top - sampler[:, None] + moved[:, None],
            sampler_logprobs=top,
            log_rest=(-top.exp().sum(1)).log1p() + (moved - sampler).detach(),
        ),
    )


@pytest.mark.parametrize("name", losses.names())
def test_loss_and_measures_have_one_value_per_token(name: str):
    tokens = inputs([3, 5])
    result = losses.build(name, {})(tokens)
    assert result.loss.shape == (8,) and result.loss.requires_grad and result.loss.isfinite().all()
    assert all(measure.shape == (8,) and not measure.requires_grad for measure in result.measures.values())
    assert {"importance_ratio", "masked"} <= set(result.measures)
    assert ("clipped_low" in result.measures) == ("clipped_high" in result.measures)


@pytest.mark.parametrize("name", losses.names())
def test_loss_that_needs_no_top_tokens_reads_none(name: str):
    loss, tokens = losses.build(name, {}), inputs([3, 5])
    if loss.num_top > 0:
        with pytest.raises(RecordError, match=name):
            loss(replace(tokens, top=None))
    else:
        assert torch.equal(loss(replace(tokens, top=None)).loss, loss(tokens).loss)


@pytest.mark.spec("K28")
@EACH
def test_step_without_a_trained_token_has_loss_zero_and_no_nan(loss: str, aggregation: str):
    tokens = inputs([0, 0])
    totals = StepTotals(num_tokens=0, num_samples=0, max_completion_length=6)
    share = aggregations.build(aggregation, {})(losses.build(loss, {})(tokens).loss, tokens, totals)
    share.backward()
    assert share.item() == 0.0
    assert tokens.logprobs.grad is not None and tokens.logprobs.grad.isfinite().all()


@pytest.mark.spec("K28")
@EACH
def test_sample_without_a_trained_token_leaves_the_gradient_of_the_others(loss: str, aggregation: str):
    tokens, totals = inputs([4]), StepTotals(num_tokens=4, num_samples=2, max_completion_length=6)
    gradients: list[torch.Tensor] = []
    for num_samples in (1, 2):
        tokens.logprobs.grad = None
        given = replace(tokens, num_samples=num_samples)
        aggregations.build(aggregation, {})(losses.build(loss, {})(given).loss, given, totals).backward()
        assert tokens.logprobs.grad is not None
        gradients.append(tokens.logprobs.grad)
    assert gradients[0].abs().max() > 0
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.spec("G-134")
@pytest.mark.parametrize("name", losses.names())
def test_gradient_where_nothing_has_moved_is_the_policy_gradient(name: str):
    levels = ["token", "sequence"] if "level" in knobs_of(losses[name]) else [None]
    for level in levels:
        tokens = inputs([3, 5, 1], moved_by=0.0)
        losses.build(name, {} if level is None else {"level": level})(tokens).loss.sum().backward()
        assert tokens.logprobs.grad is not None
        assert torch.allclose(tokens.logprobs.grad, -tokens.advantages, rtol=0, atol=1e-12), level


@pytest.mark.parametrize("name", losses.names())
def test_masked_token_has_no_policy_gradient(name: str):
    tokens = inputs([3, 5, 1])
    entropy = torch.arange(9, dtype=torch.float64) % 3
    objective = Objective(loss=losses.build(name, {}), aggregation=TokenMean())
    totals = StepTotals(num_tokens=9, num_samples=3, max_completion_length=6, entropy_threshold=1.0)
    found = objective(replace(tokens, entropy=entropy), totals)
    found.share.backward()
    masked = entropy < 1.0
    assert tokens.logprobs.grad is not None and torch.equal(found.token_loss.measures["entropy_masked"], masked)
    assert not tokens.logprobs.grad[masked].any() and tokens.logprobs.grad[~masked].any()


@pytest.mark.parametrize("far", [50.0, -50.0])
@pytest.mark.parametrize("name", losses.names())
def test_loss_and_gradient_are_finite_however_far_the_policy_has_moved(name: str, far: float):
    levels = ["token", "sequence"] if "level" in knobs_of(losses[name]) else [None]
    for level in levels:
        tokens = inputs([3, 5, 1])
        given = replace(tokens, sampler_logprobs=tokens.logprobs.detach() - far)
        result = losses.build(name, {} if level is None else {"level": level})(given)
        result.loss.sum().backward()
        assert result.loss.isfinite().all() and all(measure.isfinite().all() for measure in result.measures.values())
        assert tokens.logprobs.grad is not None and tokens.logprobs.grad.isfinite().all()


@pytest.mark.parametrize("name", losses.names())
def test_token_whose_sampler_said_no_number_spoils_no_other(name: str):
    tokens = inputs([3, 5, 1])
    missing = torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor([1]), True)
    given = replace(tokens, sampler_logprobs=tokens.sampler_logprobs.masked_fill(missing, torch.nan))
    result = losses.build(name, {})(given)
    result.loss.sum().backward()
    assert tokens.logprobs.grad is not None and tokens.logprobs.grad.isfinite().all() and result.loss.isfinite().all()
    assert tokens.logprobs.grad[5:].any()
