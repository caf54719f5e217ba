"""Reference losses and gradients, made by running the reference's own code in float64 as one micro-batch."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agrpo.aggregations import aggregations
from agrpo.losses.clip import Clip
from agrpo.records.tokens import StepTotals, TokenInputs, TokenLoss

AGGREGATION = {
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dr_grpo": "constant",
    "dapo": "token_mean",
    "async": "token_mean",
}
"""By the first word of a case's name: the objective that the reference calls so."""
NOT_BUILT: dict[str, Callable[[dict[str, Any]], bool]] = {
    "another objective": lambda config: config.get("algo") == "gmpo" or config["loss_type"] not in AGGREGATION,
    "a penalty on divergence": lambda config: config["beta"] != 0,
    "an entropy bonus": lambda config: config["entropy_coef"] != 0,
    "ratios of whole sequences": lambda config: config["importance_sampling_level"] != "token",
    "a bound on ratios for both signs": lambda config: config["delta"] is not None,
    "old log-probs beside the sampler's": lambda config: config["is_mode"] is not None,
    "a mask of sequences": lambda config: config["off_policy_mask_threshold"] is not None,
    "a mask by entropy": lambda config: config["top_entropy_quantile"] != 1.0,
}
"""What a reference case may ask for that no part offers yet."""


@cache
def golden() -> dict[str, Any]:
    return json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


def lacking(case: dict[str, Any]) -> str | None:
    """What the case needs and no part offers; None: nothing."""
    if case["config"]["algo"] == "async_grpo":
        return None
    return next((what for what, asked in NOT_BUILT.items() if asked(case["config"])), None)


CASES = [case["name"] for case in golden()["cases"] if lacking(case) is None]


def test_every_case_is_run_or_lacks_what_is_named():
    assert Counter(lacking(case) for case in golden()["cases"]) == {
        None: 27,
        "another objective": 36,
        "a penalty on divergence": 8,
        "an entropy bonus": 6,
        "ratios of whole sequences": 4,
        "a bound on ratios for both signs": 2,
        "old log-probs beside the sampler's": 11,
        "a mask of sequences": 1,
        "a mask by entropy": 1,
    }


def case_of(name: str) -> dict[str, Any]:
    return next(case for case in golden()["cases"] if case["name"] == name)


def totals_of(case: dict[str, Any], mask: Tensor) -> StepTotals:
    """Of the whole step: `gradient_accumulation_steps` micro-batches like this one, over the reference's processes."""
    config = case["config"]
    steps, processes = config["gradient_accumulation_steps"], config["num_processes"]
    num_tokens = mask.sum().item() * steps
    if config["algo"] == "async_grpo":
        num_tokens = config["global_n_tokens"] * steps / processes
    elif config["num_items_in_batch"] is not None and config["loss_type"] == "dapo":
        num_tokens = config["num_items_in_batch"] * steps / config["steps_per_generation"] / processes
    return StepTotals(
        num_tokens=round(num_tokens),
        num_samples=len(mask) * steps,
        max_completion_length=config.get("max_completion_length", 10),
    )


def run(name: str, epsilon: float | None = None) -> tuple[float, Tensor, TokenLoss]:
    """Loss, gradient over the padded log-probs, and the per-token result of one case."""
    case = case_of(name)
    config = case["config"]
    values = {
        key: torch.tensor(value, dtype=torch.float64) for key, value in golden()["tensors"][case["tensors"]].items()
    }
    mask, logps = values["mask"].bool(), values["logps"].requires_grad_()
    old = values["sampler_logps"] if config["algo"] == "async_grpo" else values["old_logps"]
    old = old if config.get("with_old", True) else logps.detach()
    row, _ = torch.nonzero(mask, as_tuple=True)
    tokens = TokenInputs(
        logprobs=logps[mask],
        sampler_logprobs=old[mask],
        advantages=values["advantages"][row],
        sample=row,
        num_samples=len(mask),
    )
    clip = Clip(
        epsilon=epsilon or config["epsilon"],
        epsilon_high=config["epsilon_high"],
        importance_min=0.0,
        importance_max=math.inf,
    )
    result = clip(tokens)
    share = aggregations.build(AGGREGATION[name.partition("/")[0]], {})(result.loss, tokens, totals_of(case, mask))
    share.backward()
    assert logps.grad is not None
    return share.item(), logps.grad, result


@pytest.mark.spec("A-139", "A-141", "A-142")
@pytest.mark.parametrize("name", CASES)
def test_clip_agrees_with_the_reference(name: str):
    loss, gradient, _ = run(name)
    out = case_of(name)["out"]
    assert loss == pytest.approx(out["loss"], abs=1e-6)
    assert torch.allclose(gradient, torch.tensor(out["dloss_dlogps"], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.spec("A-302", "A-303", "A-305")
@pytest.mark.parametrize("name", ["grpo/base", "grpo/clip_higher", "dapo/wide"])
def test_clip_measures_agree_with_the_reference(name: str):
    _, _, result = run(name)
    metrics = case_of(name)["out"]["metrics"]
    shares = {key: result.measures[key].double().mean().item() for key in ("clipped_low", "clipped_high")}
    assert shares["clipped_low"] == pytest.approx(metrics["clip_ratio/low_mean"], abs=1e-6)
    assert shares["clipped_high"] == pytest.approx(metrics["clip_ratio/high_mean"], abs=1e-6)
    assert sum(shares.values()) == pytest.approx(metrics["clip_ratio/region_mean"], abs=1e-6)


def test_loss_changed_on_purpose_disagrees_with_the_reference():
    loss, _, _ = run("async/base", epsilon=0.21)
    assert abs(loss - case_of("async/base")["out"]["loss"]) > 1e-4
