"""What a loss is given and gives back: flat tensors over trained tokens, no padding, no layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums over a whole optimizer step, all micro-batches and processes: what normalisers divide by."""

    num_tokens: int
    """Trained tokens."""
    num_samples: int
    max_completion_length: int
    entropy_threshold: float | None = None
    """Nats: tokens below it have no policy term. None: all have theirs."""
    num_entropy_tokens: int = 0
    """Trained tokens whose entropy is at or above the threshold; all of them where there is none."""
    entropy_mean: float | None = None
    """Nats, of those tokens. None: nobody looked ahead."""
    entropy_coefficient: float = 0.0
    """What multiplies the mean entropy of those tokens in the step's loss."""


@dataclass(frozen=True, kw_only=True)
class TopInputs:
    """The `K` most likely tokens of the sampler at each trained token, the trained one among them; tensors as in `TokenInputs`.

    `K` columns in the order of `Row.top`. Where a token has fewer, both log-probs are minus infinity.
    """

    logprobs: Tensor
    """`[N, K]`, of the policy being trained, with gradient."""
    sampler_logprobs: Tensor
    """`[N, K]`."""
    log_rest: Tensor
    """`[N]`: log of the policy's mass on all other tokens that could be drawn. No gradient."""


@dataclass(frozen=True, kw_only=True)
class TokenInputs:
    """One micro-batch as the objective sees it; every tensor is fp32 (or fp64 in tests) of shape `[N]`."""

    logprobs: Tensor
    """Log-prob of each trained token under the policy being trained. With `top.logprobs`, and `entropy` where a bonus asks for
    it, all that carries a gradient."""
    sampler_logprobs: Tensor
    """Log-prob under the distribution that sampled it."""
    advantages: Tensor
    sample: Tensor
    """int64: which sample the token belongs to, 0 to S - 1."""
    num_samples: int
    entropy: Tensor | None = None
    """Nats, of the policy being trained. None: nobody asks."""
    entropy_ahead: Tensor | None = None
    """The same, as it was seen before the step's first backward: what tokens are ranked by. None: nobody looked ahead."""
    left_out: Tensor | None = None
    """Bool: tokens without a policy term, whose loss is not read. None: all have theirs."""
    top: TopInputs | None = None
    """None: the loss does not ask for it, or the rollouts came without."""
    old_logprobs: Tensor | None = None
    """Log-prob under the policy that a ratio is measured from. None: under the sampler."""
    correction: Tensor | None = None
    """Weight of the old policy over the sampler. None: they are one."""
    reference_logprobs: Tensor | None = None
    """Log-prob under the reference policy. None: there is no penalty for leaving it."""

    @property
    def old(self) -> Tensor:
        """Log-prob under the policy that a ratio is measured from."""
        return self.sampler_logprobs if self.old_logprobs is None else self.old_logprobs


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """Per-token loss, before aggregation, and per-token measures for metrics."""

    loss: Tensor
    """`[N]`, carries the gradient."""
    measures: dict[str, Tensor] = field(default_factory=dict)
    """Detached tensors `[N]` by name, such as which tokens were left out."""
