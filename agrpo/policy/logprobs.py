"""Log-probs of trained tokens: one forward of a row, and the head at the positions that predict them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agrpo.policy.attention import PACKED, Layout, attention_of
from agrpo.policy.head import head_of
from agrpo.policy.tiles import Read, read_targets
from agrpo.records.batch import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def row_logprobs(
    model: PreTrainedModel,
    row: Row,
    *,
    temperature: float,
    chunk: int = 1024,
    with_top: bool = False,
    entropy_gradient: bool = False,
) -> Read:
    """What the model says of the row's targets at this sampling temperature, over the candidate sets where the row has them.

    `chunk`: most positions whose logits are held at once. `with_top`: read `row.top` as well, which the row must have.
    `entropy_gradient`: let the entropy carry one, which takes time.
    """
    hidden = hidden_states(model, row.tokens, row.positions, row.parents)
    index, targets = (torch.from_numpy(each).to(hidden.device) for each in (row.index, row.targets))
    top_ids = None
    if with_top:
        assert row.top is not None, "the row has no top tokens to read"
        assert ((row.top.ids == row.targets[:, None]).sum(1) == 1).all(), "a target is not once among its top tokens"
        top_ids = torch.from_numpy(row.top.ids).to(hidden.device, torch.int64)
    return read_targets(
        head_of(model, temperature),
        hidden.index_select(0, index),
        targets,
        row.candidates,
        chunk=chunk,
        top_ids=top_ids,
        entropy_gradient=entropy_gradient,
    )


def next_token_logprobs(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Log-probs `[V]` of the token after `token_ids`, at temperature 1; no gradient."""
    length = len(token_ids)
    with torch.no_grad():
        positions = np.arange(length)
        hidden = hidden_states(model, np.array(token_ids, np.int64), positions, positions - 1)
        return head_of(model, 1.0).logits(hidden[-1:])[0].log_softmax(-1)


def hidden_states(model: PreTrainedModel, tokens: np.ndarray, positions: np.ndarray, parents: np.ndarray) -> Tensor:
    """What the head reads, `[T, H]`. Arrays int64 `[T]`, as in `Row`."""
    attention = attention_of(model)
    assert attention == PACKED, (
        f"the model's attention is {attention}, under which samples of a row would see each other"
    )
    decoder: Any = model.get_decoder()
    device = model.device
    output = decoder(
        input_ids=torch.from_numpy(tokens)[None].to(device),
        position_ids=torch.from_numpy(positions)[None].to(device),
        use_cache=False,
        packed_layout=Layout(parents, device),
    )
    return output.last_hidden_state[0]
