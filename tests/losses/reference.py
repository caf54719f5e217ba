"""The reference's cases as our parts read them: losses and gradients of its own code in float64, one micro-batch each."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agrpo.aggregations import aggregations
from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
from agrpo.losses import Loss
from agrpo.losses.cispo import Cispo
from agrpo.losses.clip import Clip
from agrpo.losses.gmpo import Gmpo
from agrpo.losses.sapo import Sapo
from agrpo.losses.vespo import Vespo
from agrpo.objective import Objective, ObjectiveShare
from agrpo.objective.entropy import applied
from agrpo.objective.lookahead import threshold_of
from agrpo.records.tokens import StepTotals, TokenInputs

AGGREGATIONS = {
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dr_grpo": "constant",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "sapo": "sequence_mean",
    "luspo": "sequence_sum",
    "vespo": "token_mean",
    "gmpo": "sequence_mean",
    "async_grpo": "token_mean",
}
"""By what the reference calls the objective."""


@cache
def golden() -> dict[str, Any]:
    return json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


@cache
def names() -> list[str]:
    return [case["name"] for case in golden()["cases"]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of them. `changed`: settings of the reference changed on purpose."""

    name: str
    config: dict[str, Any]
    out: dict[str, Any]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, name: str, **changed: Any) -> Case:
        case = next(case for case in golden()["cases"] if case["name"] == name)
        tensors = golden()["tensors"][case["tensors"]].items()
        values = {key: torch.tensor(_floats(value), dtype=torch.float64) for key, value in tensors}
        return cls(name=name, config=case["config"] | changed, out=case["out"], values=values)

    @property
    def kind(self) -> str:
        return self.config["algo"] if self.config["algo"] != "grpo" else self.config["loss_type"]

    @property
    def mask(self) -> Tensor:
        return self.values["mask"].bool()

    @property
    def is_async(self) -> bool:
        return self.config["algo"] == "async_grpo"

    def loss(self) -> Loss:
        config = self.config
        if self.kind == "cispo":
            return Cispo(cap=config["epsilon_high"])
        if self.kind == "sapo":
            return Sapo(
                temperature_positive=config["sapo_temperature_pos"], temperature_negative=config["sapo_temperature_neg"]
            )
        if self.kind == "vespo":
            return Vespo(
                k_positive=config["vespo_k_pos"],
                lambda_positive=config["vespo_lambda_pos"],
                k_negative=config["vespo_k_neg"],
                lambda_negative=config["vespo_lambda_neg"],
            )
        if self.kind == "gmpo":
            return Gmpo(epsilon=config["epsilon"])
        return Clip(
            epsilon=config["epsilon"],
            epsilon_high=config["epsilon_high"],
            delta=config.get("delta"),
            level=config.get("importance_sampling_level", "token"),
            importance_min=0.0,
            importance_max=math.inf,
        )

    def objective(self) -> Objective:
        aggregation = aggregations.build(AGGREGATIONS[self.kind], {})
        if self.is_async:
            return Objective(loss=self.loss(), aggregation=aggregation)
        config = self.config
        return Objective(
            loss=self.loss(),
            aggregation=aggregation,
            correction=CorrectionSection(
                mode=config["is_mode"] or "off", minimum=config["is_clip_min"], maximum=config["is_clip_max"]
            ),
            masks=MasksSection(
                off_policy_threshold=config["off_policy_mask_threshold"], top_entropy=config["top_entropy_quantile"]
            ),
            divergence=DivergenceSection(
                coefficient=config["beta"], unbiased=config["use_bias_correction_kl"] and self.kind != "gmpo"
            ),
            entropy=EntropySection(
                coefficient=config["entropy_coef"],
                adaptive=config["use_adaptive_entropy"],
                minimum=config["entropy_coef_min"],
                maximum=config["entropy_coef_max"],
                delta=config["entropy_coef_delta"],
                target=config["entropy_target"],
            ),
        )

    def tokens(self, logprobs: Tensor, entropy: Tensor) -> TokenInputs:
        """`logprobs`, `entropy`: the padded leaves, which gradients are asked of."""
        config, values, mask = self.config, self.values, self.mask
        old = values["sampler_logps"] if self.is_async else values["old_logps"]
        old = old if config.get("with_old", True) else logprobs.detach()
        corrects = config.get("is_mode") is not None
        row, _ = torch.nonzero(mask, as_tuple=True)
        return TokenInputs(
            logprobs=logprobs[mask],
            sampler_logprobs=(values["sampler_logps"] if corrects else old)[mask],
            old_logprobs=old[mask] if corrects else None,
            reference_logprobs=values["ref_logps"][mask],
            advantages=values["advantages"][row],
            entropy=entropy[mask],
            sample=row,
            num_samples=len(mask),
        )

    def totals(self) -> StepTotals:
        """Of the whole step: `gradient_accumulation_steps` micro-batches like this one, over the reference's processes.

        Masked rows are samples, and an adaptive coefficient looks at the entropy of the step before, as in the reference.
        """
        config = self.config
        steps, processes = config["gradient_accumulation_steps"], config["num_processes"]
        num_own = round(self.mask.sum().item())
        num_tokens = num_own * steps
        if self.is_async:
            num_tokens = config["global_n_tokens"] * steps / processes
        elif (
            config["num_items_in_batch"] is not None and AGGREGATIONS[self.kind] == "token_mean" and self.kind != "bnpo"
        ):
            num_tokens = config["num_items_in_batch"] * steps / config["steps_per_generation"] / processes
        totals = StepTotals(
            num_tokens=round(num_tokens),
            num_samples=len(self.mask) * steps,
            max_completion_length=config.get("max_completion_length", 10),
            num_entropy_tokens=num_own * steps,
        )
        if self.is_async:
            return totals
        objective, entropy = self.objective(), self.values["entropies"][self.mask]
        if objective.masks.top_entropy < 1:
            threshold = threshold_of(entropy.numpy(), objective.masks.top_entropy)
            num_kept = int((entropy >= threshold).sum())
            totals = replace(totals, entropy_threshold=threshold, num_entropy_tokens=num_kept * steps)
        before = float(config["last_world_entropy"])
        return replace(totals, entropy_coefficient=applied(objective.entropy, config["entropy_coef"], before))

    def run(self) -> Outcome:
        logprobs, entropy = (self.values[key].clone().requires_grad_() for key in ("logps", "entropies"))
        tokens = self.tokens(logprobs, entropy)
        share = self.objective()(tokens, self.totals())
        share.share.backward()
        assert logprobs.grad is not None
        by_entropy = torch.zeros_like(entropy) if entropy.grad is None else entropy.grad
        return Outcome(tokens=tokens, share=share, by_logprobs=logprobs.grad, by_entropy=by_entropy)

    def expected(self, key: str) -> Tensor:
        return torch.tensor(_floats(self.out[key]), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What our parts make of a case: gradients are over the padded leaves."""

    tokens: TokenInputs
    share: ObjectiveShare
    by_logprobs: Tensor
    by_entropy: Tensor

    @property
    def loss(self) -> float:
        return self.share.share.item()

    @property
    def measures(self) -> dict[str, Tensor]:
        return self.share.token_loss.measures

    def mean(self, measure: str) -> float:
        """Over tokens."""
        return self.measures[measure].double().mean().item()

    def by_sample(self, measure: str) -> list[float]:
        """The mean of each sample's tokens, in order."""
        values, sample = self.measures[measure].double(), self.tokens.sample
        return [values[sample == number].mean().item() for number in sample.unique().tolist()]


def _floats(value: Any) -> Any:
    """Numbers that JSON has no form for are words there."""
    if isinstance(value, list):
        return [_floats(each) for each in value]
    return float(value) if isinstance(value, str) else value
