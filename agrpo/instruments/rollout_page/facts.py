"""What a rollout's page tells: the records that `reading` fills and every layout reads.

A field that is None has nothing to say: it was not recorded, or has not happened yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agrpo.records.prompt import Message


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """One group: its prompt, how it was made, and what became of it."""

    ticket: int
    prompt_id: str
    prompt: list[Message]
    facts: dict[str, object]
    """The other columns of the prompt's row, which the rewards are given."""
    environment: str | None
    epoch: int
    row_index: int
    model_version: int
    base: int
    claim_try: int
    generator: str
    refusal: str | None
    status: str
    """`trained`, `dropped` or `pending`."""
    reason: str | None
    """Why it was dropped, or how far it has come."""
    marks: list[str]
    claimed_at: datetime
    generated_at: datetime
    scored_at: datetime | None
    concurrency: int | None
    """Rollouts in flight when the group began, its own included."""
    backpressure_seconds: float | None
    load_wait_seconds: float | None
    ceiling_wait_seconds: float | None
    score_block_seconds: float | None
    score_wait_seconds: float | None
    score_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumption:
    """A plan of the history that trains or drops the group."""

    attempt: int
    step: int
    trained: bool
    drop_reason: str | None
    left_out_by: str | None
    """The filter, where that is the reason."""
    staleness: int | None
    """Weight updates between sampling and training."""
    version: int
    """Newest version published before the step."""
    planned_at: datetime
    finished_at: datetime | None
    """None: the step is not done yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFacts:
    """One rollout without its tokens."""

    ticket: int
    rollout_index: int
    rollout_id: str
    seed: int
    stop_reason: str
    terminated: bool
    error: str | None
    completion: list[Message]
    completion_text: str
    num_prompt_tokens: int
    num_completion_tokens: int
    num_turns: int
    tool_call_count: int
    tool_failure_count: int
    own_reward: float | None
    """A reward the rollout brought itself; part of the total at weight 1."""
    model_version: int | None
    duration_seconds: float
    reward: float | None
    """Weighted sum of its rewards."""
    duplicate: bool | None
    own_prompt: list[Message] | None
    """What it was asked; None: what its group was, or what a `rollout_func` made of that (`RolloutPage.asked`)."""
    own_columns: dict[str, object] | None
    """What the run's `rollout_func` returned with it, which the rewards are given."""
    environment_class: str | None
    reset_seconds: float | None
    get_reward_seconds: float | None
    group_reward_mean: float | None
    group_reward_std: float | None
    """Sample standard deviation."""
    advantage: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardFacts:
    """What one reward said of one rollout."""

    name: str
    weight: float
    value: float | None
    """Before its weight."""
    error: str | None
    duration_seconds: float
    """Of the call for the whole group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraFacts:
    """What a reward noted of one rollout beside its value."""

    reward: str
    name: str
    value: str | None
    """A text as it is, anything else as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFacts:
    """What the learner saw of one training sequence in one step."""

    attempt: int
    step: int
    sequence_index: int
    advantage: float
    staleness: int
    num_tokens: int
    num_trained_tokens: int
    entropy_mean: float | None
    logprob_difference_mean: float | None
    logprob_difference_max: float | None
    ratio_min: float | None
    ratio_mean: float | None
    ratio_max: float | None
    masked_share: float | None
    clipped_low_share: float | None
    clipped_high_share: float | None
    log_probs: list[float] | None
    """Per trained token, in nats."""
    entropies: list[float] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """A token that the sampler could have drawn."""

    token_id: int
    text: str | None
    logprob: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFacts:
    """One token, and all that is known of it."""

    token_id: int
    text: str | None
    """None where the run's tokenizer is not at hand."""
    trained: bool
    """Whether the token carries loss when its sequence is trained; context never does."""
    sampler_logprob: float | None = None
    learner_logprob: float | None = None
    ratio: float | None = None
    """Importance ratio: exp(learner's minus sampler's log-prob), before any masking."""
    entropy: float | None = None
    advantage: float | None = None
    """None where its sequence was not trained."""
    version: int | None = None
    """Policy version that sampled it; None for context."""
    alternatives: list[Alternative] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnFacts:
    """One sampling request: what the policy was given since the turn before, and what it answered."""

    turn_index: int
    sequence_index: int
    """Training sequence that the turn belongs to."""
    forked: bool
    """Its prompt does not continue the turn before, so that it begins a training sequence of its own."""
    kept_tokens: int
    """Tokens at the beginning of its prompt that are the turn before's, as far as they agree."""
    stop_reason: str
    begun_seconds: float | None
    """From the rollout's begin to the request."""
    duration_seconds: float | None
    """From the request to its answer."""
    num_prompt_tokens: int
    context: list[TokenFacts]
    """The prompt's other tokens; empty for the first turn, whose prompt the page shows by itself."""
    tokens: list[TokenFacts]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """One call of a tool, with what it was given and what came back."""

    turn_index: int
    name: str
    arguments: str | None
    """As JSON; None where they could not be read."""
    result: str | None
    """What the model was told."""
    failure: str | None
    reason: str | None
    """Why, where it failed."""
    duration_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutPage:
    """All of one rollout. `rollout` is None where the prompt was refused: then there are no rollouts."""

    run: str
    group: GroupFacts
    consumed: list[Consumption]
    rollout: RolloutFacts | None
    by_function: bool
    """Whether the run's `rollout_func` made it, and said what was asked."""
    asked: str | None
    """The tokens that a function has returned as its prompt, as text; None: no function, or no tokenizer."""
    rollouts: list[RolloutFacts]
    """All of the group, this one included."""
    rewards: list[RewardFacts]
    extras: list[ExtraFacts]
    """In the order of the rewards, and in that they were noted in."""
    samples: list[SampleFacts]
    turns: list[TurnFacts]
    calls: list[CallFacts]
    """Of tools, in the order the model made them."""
    no_text: str | None
    """Why tokens have no text; None: they have."""
    no_learner: str | None
    """Why tokens have nothing of the learner; None: they have, or there are none."""
