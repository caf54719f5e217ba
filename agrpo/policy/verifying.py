"""Refuses a model that packed training would get wrong: by its layers, and by a comparison before the first step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agrpo.errors import ModelError
from agrpo.policy import deltanet
from agrpo.policy.attention import PACKED, attention_of, packed_attention, register_attention
from agrpo.policy.attention.varlen import hub_kernel_of
from agrpo.policy.logprobs import row_logprobs
from agrpo.policy.precision import computed_in
from agrpo.policy.ranks.sharding import within
from agrpo.records.batch import Row

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
"""Layer types whose only mixing of tokens is softmax attention."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4, torch.float16: 0.04, torch.bfloat16: 0.3}
"""Largest mean difference in nats between a sample's packed and plain forward, by type of the arithmetic: at least twice what
another kernel alone changes in a model of 135 million weights, and well below what a leak between samples does."""
LONGEST_CHECKED_WINDOW = 1024
"""Sliding windows up to here are checked with samples that are longer. Of others it is only checked that layers hear of them."""
BEHIND_WINDOW = 24
"""Tokens of these samples that lie behind the window, at least: they are compared by themselves too."""


def refuse_unknown_layers(model: PreTrainedModel) -> None:
    """Raise `ModelError` for layers that packed rows cannot be right for, by name."""
    family, config = type(model).__name__, model.config.get_text_config()
    known = KNOWN_LAYERS | ({"linear_attention"} if deltanet.is_delta_net(model) else set())
    unknown = sorted(set(getattr(config, "layer_types", None) or []) - known)
    if unknown:
        raise ModelError(
            f"{family} has layers of type {', '.join(unknown)}; packed training knows {', '.join(sorted(known))}, and the "
            f"linear_attention (gated DeltaNet) of {', '.join(sorted(deltanet.FAMILIES))}: use a model of these"
        )
    if getattr(model, "_is_stateful", False) and config.model_type not in deltanet.FAMILIES:
        raise ModelError(
            f"{family} carries a state from token to token in a way that packed training does not know; of recurrent models it "
            f"knows {', '.join(sorted(deltanet.FAMILIES))}: use a model of these, or one of attention alone"
        )
    sinks = [name for name, _ in model.named_parameters() if name.rpartition(".")[2] == "sinks"]
    if sinks:
        raise ModelError(
            f"{family} has attention sinks ({sinks[0]}), which packed attention does not compute; use another model"
        )


def refuse_changing_positions(model: PreTrainedModel, micro_tokens: int) -> None:
    """Raise `ModelError` where rotary positions depend on the longest sample of a row, and rows may hold such a sample.

    `micro_tokens`: most tokens of a row, so of a sample. transformers takes other frequencies for the whole row where one
    position of it lies behind the length that the model was first trained at.
    """
    config = model.config.get_text_config()
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [given, *(each for each in given.values() if isinstance(each, dict))]
    for kind in kinds:
        name = kind.get("rope_type")
        if name not in ("longrope", "dynamic"):
            continue
        length = config.max_position_embeddings
        if name == "longrope":
            own = getattr(config, "original_max_position_embeddings", None)
            length = kind.get("original_max_position_embeddings") or own or length
        if micro_tokens > length:
            raise ModelError(
                f"{type(model).__name__} has {name} rotary positions, which change for every sample of a row that holds one of "
                f"more than {length} tokens, and step.micro_tokens = {micro_tokens}; set step.micro_tokens = {length} or less"
            )


def refuse_capped_scores(model: PreTrainedModel) -> None:
    """Raise `ModelError` for a model that caps its attention scores on a GPU whose kernel does not."""
    cap = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    if cap is None or model.device.type != "cuda":
        return
    kernel = hub_kernel_of(model.device)
    if not kernel.caps_scores:
        raise ModelError(
            f"{type(model).__name__} caps its attention scores (attn_logit_softcapping = {cap}), which {kernel.name}, the kernel "
            f"for {torch.cuda.get_device_name(model.device)}, does not compute; use another model, or another NVIDIA GPU"
        )


def verify_packing(model: PreTrainedModel) -> None:
    """Compare samples that share a row, and prefixes in it, with the model's own forward of each alone.

    The model is left set for packed rows. Raises `ModelError` where they disagree: the family mixes tokens, counts positions
    or ends in a way this package does not know, or the GPU's kernel is another than expected; its training would be
    silently wrong.
    """
    refuse_capped_scores(model)
    if deltanet.is_delta_net(model):
        deltanet.prepare_delta_net(model)
    samples, window = _random_samples(model), _window_of(model)
    model.set_attn_implementation("eager")
    heard: set[int | None] = set()
    with torch.no_grad():
        plain = [_plain_logprobs(model, sample) for sample in samples]
        _set_packed(model)
        with _hearing(heard):
            whole = within(model, partial(_packed_logprobs, model, samples))
    if window and not any(heard):
        raise ModelError(
            f"{type(model).__name__} has a sliding window of {window} tokens, of which its attention is not told: it lies in a "
            "mask, which packed rows have none of; use another model"
        )
    packed = whole.split([len(logprobs) for logprobs in plain])
    pairs = [_Pair(*pair) for pair in zip(plain, packed, strict=True)]
    pairs += [pair.behind(window) for pair in pairs if window and len(pair.plain) >= window]
    worst = next((pair for pair in pairs if pair.difference != pair.difference), max(pairs, key=_difference_of))
    tolerance = TOLERANCE[computed_in(model)]
    if not worst.difference <= tolerance:
        raise ModelError(
            f"{type(model).__name__} gives a mean log-prob of {float(worst.plain.mean()):.4f} to a sample read alone and of "
            f"{float(worst.packed.mean()):.4f} to the same sample in one row with others (mean difference "
            f"{worst.difference:.2g} nats, expected at most {tolerance:g}); this family cannot be trained in packed rows: use "
            "another model"
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Log-probs of one sample."""

    plain: Tensor
    packed: Tensor

    def behind(self, window: int) -> _Pair:
        """Of the tokens whose predecessors the window does not hold all."""
        return _Pair(self.plain[window - 1 :], self.packed[window - 1 :])

    @property
    def difference(self) -> float:
        """Mean, nats."""
        return float((self.packed - self.plain).abs().mean())


def _difference_of(pair: _Pair) -> float:
    return pair.difference


@contextmanager
def _hearing(windows: set[int | None]) -> Generator[None]:
    """Meanwhile, which sliding windows the model's layers hand to attention."""

    def attention(*states: Any, sliding_window: int | None = None, **others: Any) -> tuple[Tensor, None]:
        windows.add(sliding_window)
        return packed_attention(*states, sliding_window=sliding_window, **others)

    register_attention(attention)
    try:
        yield
    finally:
        register_attention()


def _window_of(model: PreTrainedModel) -> int:
    """Of the model's layers that have one; 0 where none has."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    return (getattr(config, "sliding_window", None) or 0) if kinds is None or "sliding_attention" in kinds else 0


def _set_packed(model: PreTrainedModel) -> None:
    register_attention()
    model.set_attn_implementation(PACKED)
    if attention_of(model) != PACKED:
        raise ModelError(
            f"{type(model).__name__} does not let its attention be replaced, so it cannot be trained in packed rows; use a "
            "model built on transformers' attention interface"
        )


def _random_samples(model: PreTrainedModel) -> list[list[int]]:
    """Samples that end alike, fork inside, continue or repeat one another, or share nothing; sorted.

    Those of a model with a short sliding window fork behind it, those of a recurrent one behind a whole chunk.
    """
    config = model.config.get_text_config()
    window = _window_of(model)
    reach = window + BEHIND_WINDOW if 0 < window <= LONGEST_CHECKED_WINDOW else 0
    chunk = deltanet.CHUNK if deltanet.is_delta_net(model) else 0
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> list[int]:
        return torch.randint(0, config.vocab_size, (length,), generator=generator).tolist()

    trunk = draw(9 + max(reach, chunk))
    branch = trunk + draw(6)
    other = draw(5)
    samples = [branch, branch[:-3] + draw(6), trunk[:5] + draw(7), branch[:8], branch[:8], other, other + draw(4)]
    return sorted(samples)


def _plain_logprobs(model: PreTrainedModel, sample: list[int]) -> Tensor:
    whole: Any = model
    tokens = torch.tensor([sample], device=model.device)
    logits = whole(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def _packed_logprobs(model: PreTrainedModel, samples: Sequence[list[int]]) -> Tensor:
    try:
        return row_logprobs(model, row_of(samples), temperature=1.0).logprobs
    except (TypeError, AttributeError) as error:
        raise ModelError(
            f"{type(model).__name__} does not take positions and a row's layout ({error}); this family cannot be trained in "
            "packed rows: use another model"
        ) from error


def row_of(samples: Sequence[list[int]]) -> Row:
    """One row of samples in sorted order, each prefix once; all tokens but each sample's first are trained."""
    places: dict[tuple[int, int], int] = {}
    index: list[int] = []
    for sample in samples:
        parent = -1
        for token in sample:
            index.append(parent)
            parent = places.setdefault((parent, token), len(places))
    predicted = np.array(index)
    trained = predicted >= 0
    zeros = np.zeros(trained.sum(), np.float32)
    parents, tokens = np.array(list(places)).T
    return Row(
        tokens=tokens.copy(),
        positions=_depths(parents),
        parents=parents.copy(),
        index=predicted[trained],
        targets=np.concatenate(samples)[trained],
        sample=np.repeat(np.arange(len(samples)), [len(sample) - 1 for sample in samples]),
        sampler_logprobs=zeros,
        advantages=zeros,
        num_samples=len(samples),
    )


def _depths(parents: np.ndarray) -> np.ndarray:
    depths = np.zeros(len(parents), np.int64)
    for place, parent in enumerate(parents):
        depths[place] = depths[parent] + 1 if parent >= 0 else 0
    return depths
