from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, get_scheduler

from agrpo.config import OptimizerSection
from agrpo.errors import ConfigError
from agrpo.policy.optimizer import build_optimizer, rate_schedule


def rates(scheduler: str, warmup_steps: int, horizon: int | None, steps: int = 4) -> list[float]:
    section = OptimizerSection(learning_rate=1e-3, scheduler=scheduler, warmup_steps=warmup_steps)
    rate = rate_schedule(section, horizon)
    return [rate(step) for step in range(1, steps + 1)]


@pytest.mark.spec("K36")
def test_linear_schedule_over_four_steps():
    assert rates("linear", 0, 4) == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


@pytest.mark.spec("K36")
def test_first_step_of_a_warm_up_has_rate_zero():
    assert rates("linear", 1, 4) == pytest.approx([0.0, 1e-3, 2e-3 / 3, 1e-3 / 3])
    assert rates("constant_with_warmup", 2, None) == pytest.approx([0.0, 5e-4, 1e-3, 1e-3])


@pytest.mark.spec("A-076")
def test_constant_schedule_needs_no_horizon():
    assert rates("constant", 0, None) == [1e-3] * 4


@pytest.mark.parametrize("scheduler", ["linear", "cosine", "constant_with_warmup"])
def test_rates_are_those_of_transformers_scheduler_stepped(scheduler: str):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    stepped = get_scheduler(scheduler, optimizer, 2, 6)
    expected: list[float] = []
    for _ in range(6):
        expected.append(stepped.get_last_lr()[0])
        optimizer.step()
        stepped.step()
    assert rates(scheduler, 2, 6, steps=6) == pytest.approx(expected)


@pytest.mark.spec("K36")
@pytest.mark.parametrize("scheduler", ["linear", "cosine"])
def test_decay_to_an_unknown_end_is_refused(scheduler: str):
    with pytest.raises(ConfigError, match=rf'"{scheduler}".*stop\.max_steps'):
        rates(scheduler, 0, None)


def test_norms_and_biases_do_not_decay(make_model: Callable[..., PreTrainedModel]):
    model = make_model("phi")
    optimizer = build_optimizer(model, OptimizerSection(weight_decay=0.1, learning_rate=1e-3))
    names = {weight: name for name, weight in model.named_parameters()}
    decayed, plain = ({names[weight] for weight in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert "model.layers.0.self_attn.q_proj.weight" in decayed
    assert {"model.layers.0.self_attn.q_proj.bias", "model.final_layernorm.weight", "lm_head.bias"} <= plain
    assert decayed | plain == set(names.values())
