"""The probe of a policy version: what an engine that serves these weights must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agrpo.policy.logprobs import next_token_logprobs
from agrpo.policy.ranks.sharding import within
from agrpo.records.progress import Probe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_TOKENS = 32
NUM_TOP = 8


def make_probe(model: PreTrainedModel, seed: int) -> Probe:
    """Random tokens, and the log-probs of the most likely next ones under the model's weights.

    Of a model whose weights are shared out all ranks must call it.
    """
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(seed)
    token_ids: list[int] = torch.randint(0, vocabulary, (NUM_TOKENS,), generator=generator).tolist()
    logprobs = within(model, lambda: next_token_logprobs(model, token_ids))
    top = logprobs.topk(min(NUM_TOP, vocabulary))
    return Probe(token_ids=token_ids, top_ids=top.indices.tolist(), top_logprobs=top.values.tolist())
