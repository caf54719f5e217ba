"""How completions are drawn: the settings that decide the distribution a token is sampled from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of every request of a run. Checked by `agrpo.config`; records carry values, not rules."""

    num_generations: int = 8
    """Rollouts per prompt (G)."""
    temperature: float = 1.0
    """Logits are divided by this before anything else."""
    top_p: float = 1.0
    """Smallest set of most likely tokens holding this probability; 1.0 keeps all."""
    top_k: int = 0
    """Most likely tokens kept; 0 keeps all."""
    min_p: float = 0.0
    """Tokens below this share of the most likely token's probability are left out; 0 keeps all."""
    max_completion_length: int = 2048
    """Most tokens generated per request, so per turn."""
    num_sampler_logprobs: int = 0
    """Most likely tokens whose sampler log-probs are kept per generated token; 0 keeps none."""
    reproducible: bool = False
    """Each call of the engine is a batch of its own, so that a request repeats bit for bit."""
    request_timeout_seconds: float = 600.0
    """After which a request is asked once more with the same seed, and then has failed."""

    @property
    def truncated(self) -> bool:
        """Whether some tokens can never be sampled, so that a candidate set has to be kept per token."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One sampling request: a whole prompt in tokens, and the seed that makes it repeatable."""

    prompt_ids: list[int]
    seed: int
    """Of this request alone (run seed, ticket, rollout, turn), below 2**63."""
    sampling: Sampling
    stop_ids: frozenset[int]
    """Tokens that end a completion. The stop token is part of the output."""
