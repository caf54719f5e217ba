"""The tables of what is laid around a loss: corrections, masks, penalty and bonus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agrpo.registry import part

if TYPE_CHECKING:
    from agrpo.aggregations import Aggregation
    from agrpo.losses import Loss

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@part
class CorrectionSection:
    """The weight `c = pi_old / mu` of what the sampler `mu` drew, beside the ratio `pi / pi_old` that the loss reads.

    Off: `pi_old` is `mu`, and the loss's own ratio carries all of it.
    """

    mode: Literal["off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "off"
    """`token_…`: a weight for each token. `sequence_…`: the product over the sample's tokens, for all of them. `…_truncate` cuts
    it to the bounds, `…_mask` makes it 0 outside of them."""
    minimum: Amount | None = None
    """Lower bound. None: none."""
    maximum: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 3.0
    """Upper bound. None: none."""

    @property
    def is_on(self) -> bool:
        return self.mode != "off"


@part
class MasksSection:
    """Tokens without a policy term. They count in every denominator, and keep the penalty."""

    off_policy_threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """A sample of negative advantage is masked where its mean log-prob has fallen by more than this since it was sampled. In
    nats; DeepSeek-V3.2 begins at 0.5. None: off."""
    top_entropy: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the step's tokens, those of highest entropy, that keep their policy term. 1: all; 0: the highest alone. The
    80/20 rule takes 0.2. Below 1 the step is forwarded once more."""


@part
class DivergenceSection:
    """A penalty for leaving the reference policy: `coefficient x D`, `D = pi_ref / pi - log(pi_ref / pi) - 1`, per token."""

    coefficient: Amount = 0.0
    """Often called beta. 0: no reference policy is held."""
    unbiased: bool = True
    """Multiply `D` by the importance ratio, so that its gradient is that of the divergence."""
    sync_steps: Annotated[int, Field(ge=1)] | None = None
    """After every so many updates of the policy the reference moves towards it; TR-DPO takes 512. None: it stays what training
    began with."""
    mixup: Annotated[float, Field(gt=0, le=1)] = 0.6
    """How far it moves: the reference becomes `mixup x policy + (1 - mixup) x reference`, weight by weight."""

    def syncs_after(self, num_updates: int) -> bool:
        """Whether the reference moves after this update, counted from 1."""
        return self.sync_steps is not None and num_updates % self.sync_steps == 0


@part
class EntropySection:
    """A bonus: `- coefficient x H`, with `H` the mean entropy of the step's tokens that have a policy term."""

    coefficient: Amount = 0.0
    """In units of the loss per nat. Where it is adaptive, what it begins with."""
    adaptive: bool = False
    """Move the coefficient after every step: up while the entropy is at or below the target, else down; and add the bonus only
    then. The step is forwarded once more."""
    minimum: Amount = 0.0
    """Of an adaptive coefficient."""
    maximum: Amount = 1.0
    """Of an adaptive coefficient."""
    delta: Amount = 0.005
    """What an adaptive coefficient moves by."""
    target: Amount = 0.2
    """Entropy that an adaptive coefficient holds, in nats. Set it near what `entropy` says at the start of a run."""

    @property
    def is_on(self) -> bool:
        return self.adaptive or self.coefficient > 0

    def before(self, left: float | None) -> float | None:
        """The coefficient that a step begins with. `left`: by the step before; None: there is none. None: there is no bonus."""
        if not self.is_on:
            return None
        return left if self.adaptive and left is not None else self.coefficient


def objective_problems(sections: Mapping[str, Any], loss: Loss, aggregation: Aggregation) -> list[str]:
    """What no table of an objective can see alone."""
    return [
        *_correction_problems(sections["correction"], loss),
        *_entropy_problems(sections["entropy"]),
        *_aggregation_problems(loss, aggregation),
    ]


def _correction_problems(correction: CorrectionSection, loss: Loss) -> list[str]:
    if not correction.is_on:
        unused = CorrectionSection()
        said = [name for name in ("minimum", "maximum") if getattr(correction, name) != getattr(unused, name)]
        return [
            f"correction.{name}: bounds a weight, and there is none; set correction.mode, or leave it out"
            for name in said
        ]
    problems: list[str] = []
    if loss.num_top > 0:
        problems.append(
            f'correction.mode: "{correction.mode}" weighs tokens a second time, as this loss bounds the ratio of policy to '
            'sampler itself; leave it out, or set loss.name = "clip"'
        )
    if loss.corrects_itself and correction.mode.startswith("sequence"):
        problems.append(
            f'correction.mode: "{correction.mode}" gives a whole sample one weight, and this loss multiplies the weights of its '
            f'tokens; set "{correction.mode.replace("sequence", "token")}"'
        )
    if correction.minimum is not None and correction.maximum is not None and correction.minimum > correction.maximum:
        problems.append(
            f"correction.minimum = {correction.minimum:g}: lies above correction.maximum = {correction.maximum:g}; lower the "
            "first or raise the second"
        )
    return problems


def _entropy_problems(entropy: EntropySection) -> list[str]:
    if not entropy.adaptive:
        unused = EntropySection()
        said = [
            name
            for name in ("minimum", "maximum", "delta", "target")
            if getattr(entropy, name) != getattr(unused, name)
        ]
        return [
            f"entropy.{name}: says how a coefficient moves, and it is fixed; set entropy.adaptive = true, or leave it out"
            for name in said
        ]
    if entropy.minimum <= entropy.coefficient <= entropy.maximum:
        return []
    return [
        f"entropy.coefficient = {entropy.coefficient:g}: an adaptive coefficient begins within entropy.minimum = "
        f"{entropy.minimum:g} and entropy.maximum = {entropy.maximum:g}; move it, or them"
    ]


def _aggregation_problems(loss: Loss, aggregation: Aggregation) -> list[str]:
    if not aggregation.for_sequences or loss.level == "sequence":
        return []
    return [
        "aggregation.name: this aggregation undoes what a ratio of whole samples does to long ones, and the loss's ratios are "
        'of tokens; set loss.level = "sequence" where the loss has it, or aggregation.name = "token_mean"'
    ]
