"""What the learner saw of a step's samples and rows: a part of its done record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutcome:
    """What the learner saw of one sample. Token statistics are over the sample's trained tokens."""

    ticket: int
    rollout_index: int
    sequence_index: int
    micro_batch: int
    advantage: float
    staleness: int
    num_tokens: int
    """Of the sequence, those that it shares with others of its row included."""
    num_trained_tokens: int
    entropy_mean: float
    """Nats."""
    logprob_difference_mean: float
    """Absolute difference between sampler and recomputed log-prob, nats."""
    logprob_difference_max: float
    ratio_min: float
    """Importance ratio before any masking."""
    ratio_mean: float
    ratio_max: float
    masked_share: float
    """Tokens left out of the loss because their ratio is out of bounds."""
    clipped_low_share: float | None = None
    """Tokens below the trust region whose advantage is negative. None: the loss has no such region, as with the next."""
    clipped_high_share: float | None = None
    """Tokens above the trust region whose advantage is positive."""
    capped_share: float | None = None
    """Tokens whose ratio is cut as a weight, and whose advantage is positive. None: the loss cuts none."""
    phi: float | None = None
    """Weight of the whole sample. None: the loss gives it none."""
    kl: float | None = None
    """From the reference policy, as it is penalised, before its coefficient. None: there is no penalty."""
    correction_min: float | None = None
    """Weight of the old policy over the sampler, after its bounds. None: there is no correction."""
    correction_mean: float | None = None
    correction_max: float | None = None
    sampler_mass: float | None = None
    """What the sampler's most likely tokens hold of its distribution. None: the loss reads none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """One micro-batch as it was forwarded."""

    num_samples: int
    num_tokens: int
    """Forwarded tokens; one that samples share counts once."""
    attention_cost: int
    """Pairs of a token and one that it attends to."""
    num_shared_terms: int = 0
    """Loss terms on a token that carries another sample's term already."""
    flops: int | None = None
    """Of the model's arithmetic over it, forward and backward, nothing counted twice. None: unknown for this model."""
