"""AdamW, and the learning rate of each step by transformers' own schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from agrpo.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.config import OptimizerSection

UNDECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
"""Names whose weights do not decay, as in transformers' trainer."""


def build_optimizer(model: PreTrainedModel, section: OptimizerSection) -> torch.optim.AdamW:
    """AdamW over the model's trainable weights; biases and norms do not decay. The rate is set at each step."""
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], UNDECAYED))
    trainable = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for name, weight in trainable if name in decayed], "weight_decay": section.weight_decay},
        {"params": [weight for name, weight in trainable if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=section.learning_rate,
        betas=section.betas,
        eps=section.epsilon,
        fused=False,
        foreach=any(weight.is_cuda for _, weight in trainable),
    )


def rate_schedule(section: OptimizerSection, horizon: int | None) -> Callable[[int], float]:
    """The learning rate of optimizer step 1, 2, …; the first step of a warm-up has rate 0, as in transformers.

    `horizon`: the run's last step, None where unknown. Raises `ConfigError` where the schedule needs it.
    """
    from transformers import get_scheduler

    if horizon is None and section.scheduler in ("linear", "cosine"):
        raise ConfigError(
            f'optimizer.scheduler = "{section.scheduler}": it decays to the last step, whose number is unknown; set '
            "stop.max_steps, or a constant schedule"
        )
    unused = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=section.learning_rate)
    schedule: Any = get_scheduler(section.scheduler, unused, section.warmup_steps, horizon)
    factor: Callable[[int], float] = schedule.lr_lambdas[0]

    def rate(step: int) -> float:
        assert step >= 1, f"optimizer steps are numbered from 1, asked for the rate of step {step}"
        return section.learning_rate * factor(step - 1)

    return rate
