"""Score centering against its definition, summed over a small vocabulary in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agrpo.errors import ConfigError, RecordError
from agrpo.losses import losses
from agrpo.losses.clip import Clip
from agrpo.losses.score_centering import ScoreCentering
from agrpo.records.tokens import TokenInputs, TopInputs

VOCABULARY, NUM_TOP, NUM_TOKENS = 13, 4, 200
BANDS = [(0.5, 5.0), (0.0, 2.0), (0.9, 1.1), (0.0, math.inf)]


def drawn(spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of the policy, the sampler's log-probs, sampled ids and advantages of many tokens."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(NUM_TOKENS, VOCABULARY, generator=draw, dtype=torch.float64)
    moved = logits + spread * torch.randn(logits.shape, generator=draw, dtype=torch.float64)
    sampler = moved.log_softmax(-1)
    sampled = torch.multinomial(sampler.exp(), 1, generator=draw)[:, 0]
    return logits, sampler, sampled, torch.randn(NUM_TOKENS, generator=draw, dtype=torch.float64)


def inputs(logits: Tensor, sampler: Tensor, sampled: Tensor, advantages: Tensor) -> TokenInputs:
    """What the learner hands to the loss: the sampler's most likely tokens, and the sampled one where it is not among them."""
    policy = logits.log_softmax(-1)
    top = sampler.topk(NUM_TOP).indices
    among = (top == sampled[:, None]).any(1, keepdim=True)
    ids = torch.cat([top, sampled[:, None]], 1)
    filler = torch.cat([torch.zeros_like(top, dtype=torch.bool), among], 1)
    rest = torch.ones_like(policy).scatter(1, ids, 0.0)
    every = torch.arange(len(sampled))
    return TokenInputs(
        logprobs=policy[every, sampled],
        sampler_logprobs=sampler[every, sampled],
        advantages=advantages,
        sample=torch.zeros(len(sampled), dtype=torch.long),
        num_samples=1,
        top=TopInputs(
            logprobs=policy.gather(1, ids).masked_fill(filler, -math.inf),
            sampler_logprobs=sampler.gather(1, ids).masked_fill(filler, -math.inf),
            log_rest=(policy.detach().exp() * rest).sum(1).log(),
        ),
    )


def gradient(loss: ScoreCentering | Clip, *given: Tensor) -> Tensor:
    """By the logits, one row a token."""
    logits = given[0].clone().requires_grad_()
    loss(inputs(logits, *given[1:])).loss.sum().backward()
    assert logits.grad is not None
    return logits.grad


def defined(band: tuple[float, float], *given: Tensor) -> Tensor:
    """`-A ( f(r_o) grad log pi(o) - sum over v of mu(v) f(r_v) grad log pi(v) )`, the rest's mu taken as pi rescaled."""
    logits, sampler, sampled, advantages = given
    policy, known = logits.softmax(-1), inputs(*given).top
    assert known is not None
    named = torch.zeros_like(policy, dtype=torch.bool).scatter(1, sampler.topk(NUM_TOP).indices, True)
    named = named.scatter(1, sampled[:, None], True)
    left = [(each * ~named).sum(1, keepdim=True) for each in (policy, sampler.exp())]
    mu = torch.where(named, sampler.exp(), policy * left[1] / left[0])
    ratio = policy / mu
    weight = torch.where((ratio >= band[0]) & (ratio <= band[1]), ratio, 0.0)
    scores = torch.eye(VOCABULARY, dtype=torch.float64) - policy[:, None]  # [N, v, logit]
    every = torch.arange(NUM_TOKENS)
    sampled_part = weight[every, sampled][:, None] * scores[every, sampled]
    return -advantages[:, None] * (sampled_part - torch.einsum("nv,nvj->nj", mu * weight, scores))


@pytest.mark.spec("A-132", "A-133", "A-134", "A-135", "A-136")
@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_gradient_is_the_definition_summed_over_the_vocabulary(band: tuple[float, float], spread: float):
    given = drawn(spread)
    found = gradient(ScoreCentering(importance_min=band[0], importance_max=band[1]), *given)
    assert (found - defined(band, *given)).abs().max() < 1e-12


@pytest.mark.spec("A-131", "A-132")
def test_masked_token_loses_its_own_score_and_keeps_the_centre():
    logits, sampler, sampled, advantages = drawn(1.0)
    result = ScoreCentering()(inputs(logits, sampler, sampled, advantages))
    masked = result.measures["masked"]
    assert 0 < masked.sum() < NUM_TOKENS
    found = gradient(ScoreCentering(), logits, sampler, sampled, advantages)[masked]
    assert (found.abs().sum(1) > 1e-6).sum() > 10
    again = gradient(ScoreCentering(), logits, sampler, sampled, 2 * advantages)[masked]
    assert torch.allclose(again, 2 * found)


@pytest.mark.spec("A-137")
def test_all_in_band_is_plain_masked_importance_sampling():
    given = drawn(0.05)
    wide: dict[str, Any] = {"importance_min": 0.1, "importance_max": 10.0}
    plain = Clip(epsilon=0.99, epsilon_high=9.0, **wide)
    found = ScoreCentering(**wide)(inputs(*given))
    assert torch.equal(found.loss, plain(inputs(*given)).loss)
    assert torch.allclose(gradient(ScoreCentering(**wide), *given), gradient(plain, *given), rtol=0, atol=1e-15)


def expected_gradient(loss: ScoreCentering | Clip, logits: Tensor, sampler: Tensor) -> Tensor:
    """Of one position at advantage 1, over every token that the sampler could have drawn."""
    each = torch.arange(VOCABULARY)
    ones = torch.ones(VOCABULARY, dtype=torch.float64)
    rows = gradient(loss, logits.repeat(VOCABULARY, 1), sampler.repeat(VOCABULARY, 1), each, ones)
    return sampler.exp() @ rows


@pytest.mark.spec("A-133")
def test_expected_gradient_at_a_constant_advantage_is_zero_where_the_rest_is_the_policy_rescaled():
    logits, sampler, _, _ = drawn(1.5, seed=3)
    each = {"clip": Clip(epsilon=0.99, epsilon_high=4.0), "score_centering": ScoreCentering()}
    off_by, num_places = dict.fromkeys(each, 0.0), 0
    for policy, mu in zip(logits.softmax(-1), sampler.exp(), strict=True):
        top = mu.topk(NUM_TOP).indices
        rest = torch.ones(VOCABULARY, dtype=torch.bool).index_fill(0, top, False)
        rescaled = torch.where(rest, policy * mu[rest].sum() / policy[rest].sum(), mu).log()
        if set(rescaled.topk(NUM_TOP).indices.tolist()) != set(top.tolist()):
            continue
        num_places += 1
        for name, loss in each.items():
            off_by[name] = max(off_by[name], expected_gradient(loss, policy.log(), rescaled).abs().max().item())
    assert num_places > 50
    assert off_by["score_centering"] < 1e-12
    assert off_by["clip"] > 0.05


def test_centre_takes_most_of_the_bias_where_the_rest_is_something_else():
    logits, sampler, _, _ = drawn(1.5, seed=3)
    off_by = [
        sum(expected_gradient(loss, logits[place], sampler[place]).norm().item() for place in range(40))
        for loss in (ScoreCentering(), Clip(epsilon=0.99, epsilon_high=4.0))
    ]
    assert off_by[0] < 0.6 * off_by[1]


@pytest.mark.spec("K26")
def test_advantage_zero_has_exactly_no_gradient():
    logits, sampler, sampled, advantages = drawn(1.0)
    assert not gradient(ScoreCentering(), logits, sampler, sampled, 0 * advantages).any()


@pytest.mark.spec("A-138", "A-302", "A-303", "A-305")
def test_epsilon_is_measured_and_moves_no_gradient():
    given = drawn(0.5)
    narrow, wide = (ScoreCentering(epsilon=epsilon) for epsilon in (0.01, 0.9))
    assert torch.equal(gradient(narrow, *given), gradient(wide, *given))
    clipped = Clip(epsilon=0.01)(inputs(*given)).measures
    measures = narrow(inputs(*given)).measures
    for name in ("importance_ratio", "masked", "clipped_low", "clipped_high"):
        assert torch.equal(measures[name], clipped[name])
    assert measures["clipped_low"].any() and measures["clipped_high"].any()


@pytest.mark.spec("A-299")
def test_sampler_mass_is_that_of_its_most_likely_tokens_without_the_appended_one():
    logits, sampler, sampled, advantages = drawn(0.5)
    measured = ScoreCentering()(inputs(logits, sampler, sampled, advantages)).measures["sampler_mass"]
    assert torch.allclose(measured, sampler.exp().topk(NUM_TOP).values.sum(1), rtol=0, atol=1e-15)


def test_sampler_whose_named_tokens_hold_everything_leaves_no_rest():
    given = drawn(0.3)
    tokens = inputs(*given)
    assert tokens.top is not None
    full = replace(
        tokens.top,
        logprobs=tokens.top.logprobs.log_softmax(-1),
        sampler_logprobs=tokens.top.sampler_logprobs.log_softmax(-1),
        log_rest=torch.full((NUM_TOKENS,), -1e30, dtype=torch.float64),
    )
    result = ScoreCentering()(replace(tokens, top=full))
    assert result.loss.isfinite().all()
    assert result.measures["sampler_mass"].max() <= 1.0


def test_rollouts_that_came_without_top_tokens_are_refused_with_the_way_out():
    tokens = replace(inputs(*drawn(0.3)), top=None)
    with pytest.raises(RecordError, match=r'sampled without; set loss.name = "clip"'):
        ScoreCentering()(tokens)


@pytest.mark.spec("A-062", "A-063")
@pytest.mark.parametrize(
    "knobs", [{"epsilon": 1.0}, {"epsilon_high": -1.0}, {"importance_min": 1.5}, {"importance_max": 0.5}]
)
def test_knob_out_of_range_is_refused_by_name(knobs: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(knobs))):
        losses.build("score_centering", knobs)
