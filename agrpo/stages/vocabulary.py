"""How many tokens the run's model knows, and what to say of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agrpo.errors import RecordError
from agrpo.records.sample import Sample

if TYPE_CHECKING:
    from agrpo.config import ModelSection


def num_tokens_of(model: ModelSection) -> int:
    """Tokens that the model has an embedding of."""
    from transformers import AutoConfig

    auto_config: Any = AutoConfig
    found = auto_config.from_pretrained(model.path, revision=model.revision, trust_remote_code=model.trust_remote_code)
    return found.get_text_config().vocab_size


def refuse_unknown_tokens(samples: Sequence[Sample], num_tokens: int, step: int) -> None:
    """Raise `RecordError` for an id that the model has no embedding of. `step`: which trains them."""
    for sample in samples:
        tokens = sample.sequence.tokens
        if tokens and not (min(tokens) >= 0 and max(tokens) < num_tokens):
            place = next(at for at, token in enumerate(tokens) if not 0 <= token < num_tokens)
            raise RecordError(
                f"step {step} is to train ticket {sample.ticket}, of whose rollout {sample.rollout_index} token {place} has the id "
                f"{tokens[place]}; the model knows 0 to {num_tokens - 1}. No engine samples such a token: mend the hook or the "
                f"rollout_func that gave it, then `agrpo resume` this run with --from-step {step - 1}, which asks the prompt again"
            )
