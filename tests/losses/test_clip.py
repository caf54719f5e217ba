from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from agrpo.errors import ConfigError
from agrpo.losses import losses
from agrpo.losses.clip import Clip
from agrpo.records.tokens import TokenInputs, TokenLoss


def lose(ratios: list[float], advantages: list[float], **knobs: Any) -> tuple[TokenLoss, list[float]]:
    """The loss of tokens with these ratios, and its gradient with respect to each log-prob."""
    logprobs = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    tokens = TokenInputs(
        logprobs=logprobs,
        sampler_logprobs=torch.zeros(len(ratios), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        sample=torch.zeros(len(ratios), dtype=torch.long),
        num_samples=1,
    )
    result = Clip(**knobs)(tokens)
    result.loss.sum().backward()
    assert logprobs.grad is not None
    return result, logprobs.grad.tolist()


@pytest.mark.spec("A-129", "A-139")
def test_loss_is_the_clipped_ratio_times_the_advantage():
    result, gradient = lose([1.0, 1.5, 0.6, 1.5, 0.6], [2.0, 2.0, 2.0, -1.0, -1.0])
    assert result.loss.tolist() == pytest.approx([-2.0, -2.4, -1.2, 1.5, 0.8])
    assert gradient == pytest.approx([-2.0, 0.0, -1.2, 1.5, 0.0])


@pytest.mark.spec("A-131", "A-139")
def test_token_out_of_the_band_leaves_loss_and_gradient():
    result, gradient = lose([0.49, 0.5, 5.0, 5.01], [1.0, 1.0, -1.0, -1.0])
    assert result.measures["masked"].tolist() == [True, False, False, True]
    assert result.loss.tolist() == pytest.approx([0.0, -0.5, 5.0, 0.0])
    assert gradient == pytest.approx([0.0, -0.5, 5.0, 0.0])


def test_open_band_leaves_nothing_out():
    result, gradient = lose([1e-6, 1e6], [1.0, -1.0], importance_min=0.0, importance_max=math.inf)
    assert not result.measures["masked"].any()
    assert result.loss.tolist() == pytest.approx([-1e-6, 1e6])
    assert gradient == pytest.approx([-1e-6, 1e6])


@pytest.mark.spec("A-060")
def test_upper_width_of_its_own_moves_only_the_upper_clip():
    result, _ = lose([1.25, 1.5, 0.6], [1.0, 1.0, -1.0], epsilon_high=0.28)
    assert result.loss.tolist() == pytest.approx([-1.25, -1.28, 0.8])


@pytest.mark.spec("A-302", "A-303", "A-305")
def test_clip_measures_count_only_the_side_that_the_advantage_clips():
    result, _ = lose([0.7, 0.7, 1.3, 1.3, 0.1], [-1.0, 1.0, 1.0, -1.0, -1.0])
    assert result.measures["clipped_low"].tolist() == [True, False, False, False, True]
    assert result.measures["clipped_high"].tolist() == [False, False, True, False, False]
    assert result.measures["importance_ratio"].tolist() == pytest.approx([0.7, 0.7, 1.3, 1.3, 0.1])


def test_absurd_log_ratios_stay_finite():
    tokens = TokenInputs(
        logprobs=torch.tensor([-1000.0, 0.0, -1.0], requires_grad=True),
        sampler_logprobs=torch.tensor([0.0, -1000.0, math.nan]),
        advantages=torch.tensor([1.0, -1.0, 1.0]),
        sample=torch.zeros(3, dtype=torch.long),
        num_samples=1,
    )
    result = Clip()(tokens)
    result.loss.sum().backward()
    assert result.loss.tolist() == [0.0, 0.0, 0.0]
    assert result.measures["masked"].all()
    assert tokens.logprobs.grad is not None and tokens.logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "knobs", [{"epsilon": -0.1}, {"epsilon_high": -1.0}, {"importance_min": 1.5}, {"importance_max": 0.5}]
)
def test_knob_out_of_range_is_refused_by_name(knobs: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(knobs))):
        losses.build("clip", knobs)
