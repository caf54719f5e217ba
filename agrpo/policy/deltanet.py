"""Gated DeltaNet layers over packed rows: each sample's states go through its own tokens. arXiv:2412.06464.

Such a layer mixes tokens twice: a short causal convolution, and a recurrence whose state is read in chunks. Both are
functions of the family's page in transformers, to which the model hands the row's layout down. Here the convolution reads
each chain of the row behind its own ancestors, and the recurrence goes through the trie level by level, each segment from
the state that its parent ended in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from agrpo.errors import MissingPackage, ModelError
from agrpo.policy.attention import Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lara_mini"}
"""Model types whose `linear_attention` layers are gated DeltaNets that this page reads."""
OLDEST_TRANSFORMERS = (5, 15)
CHUNK = 64
"""Tokens that the recurrence reads at once."""
SHORTEST_CHUNK = 16
"""Tokens that it can be made to read at once where all segments are short; fewer save nothing."""

CONVOLUTION = "causal_conv1d_fn"
RECURRENCE = "torch_chunk_gated_delta_rule"


def is_delta_net(model: PreTrainedModel) -> bool:
    """Whether the model is a hybrid whose recurrent layers this page reads."""
    config = model.config.get_text_config()
    return config.model_type in FAMILIES and "linear_attention" in (getattr(config, "layer_types", None) or [])


def prepare_delta_net(model: PreTrainedModel) -> None:
    """Let the model's gated DeltaNet layers read packed rows; plain forwards stay as they are. Again is harmless.

    Raises `MissingPackage` for a transformers that is too old, and `ModelError` where the layers run on kernels that take
    their place as a whole.
    """
    family, found = type(model).__name__, version("transformers")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise MissingPackage(
            f"{family} has gated DeltaNet layers, which packed rows need transformers {oldest} for; {found} is installed: "
            f"pip install -U 'transformers>={oldest}'"
        )
    if getattr(model, "use_kernels", False):
        raise ModelError(
            f"{family} runs its gated DeltaNet layers on hub kernels (use_kernels), which know nothing of packed rows; load it "
            "without them"
        )
    layers = [type(layer) for layer in model.modules() if type(layer).__name__.endswith("GatedDeltaNet")]
    pages = {sys.modules[layer.__module__] for layer in layers}
    if not pages or not all(hasattr(page, CONVOLUTION) and hasattr(page, RECURRENCE) for page in pages):
        raise ModelError(
            f"{family} of transformers {found} computes its linear_attention layers in another way than expected ({CONVOLUTION} "
            f"and {RECURRENCE}); use a transformers that agrpo was tested with"
        )
    for page in pages:
        _replace(page, CONVOLUTION, _convolution)
        _replace(page, RECURRENCE, _recurrence, sums=True)


def _replace(page: ModuleType, name: str, packed: Callable[..., Any], *, sums: bool = False) -> None:
    """`sums`: what adds up states over a sample, in float32 whatever the type of the arithmetic around it."""
    plain = getattr(page, name)
    if hasattr(plain, "__wrapped_by_agrpo__"):
        return

    @wraps(plain)
    def chosen(*args: Any, packed_layout: Layout | None = None, **kwargs: Any) -> Any:
        device = args[0].device.type
        with torch.autocast(device, enabled=torch.is_autocast_enabled(device) and not sums):
            if packed_layout is None:
                return plain(*args, **kwargs)
            return packed(plain, packed_layout, *args, **kwargs)

    chosen.__wrapped_by_agrpo__ = True  # type: ignore[attr-defined]
    setattr(page, name, chosen)


def _convolution(
    plain: Callable[..., Tensor], layout: Layout, hidden_states: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """`[1, C, T]` to the same; `weight` is `[C, width]`."""
    chains = _chains_of(layout, weight.shape[-1])
    tokens = pad(hidden_states[0].t(), (0, 0, 0, 1)).index_select(0, chains.tokens)
    return plain(tokens.t()[None], weight, *args, **kwargs).index_select(2, chains.outputs)


def _recurrence(
    plain: Callable[..., tuple[Tensor, Tensor]],
    layout: Layout,
    *states: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values `[1, T, H, D]`, log decays `g` and write strengths `beta` `[1, T, H]`; outputs as the values."""
    assert initial_state is None and not output_final_state, "a packed row begins at its roots and is never continued"
    levels = _levels_of(layout)
    sizes = [batch.parents.size * batch.length for batch in levels.batches]
    # The token after the last is all zeros: it writes nothing, and its decay is one.
    parts = [pad(states[0], [0, 0] * (states.ndim - 2) + [0, 1]) for states in (*states, g, beta)]
    parts = [part.index_select(0, levels.tokens).split(sizes) for part in parts]
    finals: dict[int, Tensor] = {}
    outputs: list[Tensor] = []
    for batch, *pieces in zip(levels.batches, *parts, strict=True):
        q, k, v, decay, strength = (piece.unflatten(0, (len(batch.segments), -1)) for piece in pieces)
        begun = None if batch.parents[0] < 0 else torch.stack([finals[parent] for parent in batch.parents.tolist()])
        if q.device.type == "cpu":
            kwargs["chunk_size"] = batch.chunk
        output, ended = plain(
            q, k, v, g=decay, beta=strength, initial_state=begun, output_final_state=batch.is_continued, **kwargs
        )
        outputs.append(output.flatten(0, 1))
        if batch.is_continued:
            finals |= dict(zip(batch.segments.tolist(), ended.unbind(0), strict=True))
    return torch.cat(outputs).index_select(0, levels.outputs)[None], None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chains:
    """A row for the convolution: runs of tokens that follow each other, each behind the ancestors it reaches back to."""

    tokens: Tensor
    """int64: row positions; `T` is a token of zeros."""
    outputs: Tensor
    """int64 `[T]`: where each row position went."""


def _chains_of(layout: Layout, width: int) -> _Chains:
    kept = _CHAINS.setdefault(layout, {})
    if width not in kept:
        kept[width] = _chains(layout, width)
    return kept[width]


def _chains(layout: Layout, width: int) -> _Chains:
    parents = layout.parents
    places = np.arange(len(parents))
    begins = (parents != places - 1) | (parents < 0)
    outputs = places + (width - 1) * np.cumsum(begins)
    tokens = np.empty(len(parents) + (width - 1) * begins.sum(), np.int64)
    tokens[outputs] = places
    ancestors, firsts = places[begins], outputs[begins]
    for back in range(1, width):
        ancestors = np.where(ancestors < 0, -1, parents[ancestors])
        tokens[firsts - back] = np.where(ancestors < 0, len(parents), ancestors)
    return _Chains(tokens=_moved(tokens, layout), outputs=_moved(outputs, layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Segments of one level that are read in one call."""

    segments: np.ndarray
    parents: np.ndarray
    """The segments they continue; all -1 at the first level."""
    length: int
    """Tokens of each, padded at the end."""
    is_continued: bool
    """Whether one of them is continued by another."""

    @property
    def chunk(self) -> int:
        """Tokens that torch's recurrence reads at once. GPU kernels have a size of their own."""
        return min(CHUNK, max(SHORTEST_CHUNK, 1 << (self.length - 1).bit_length()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Levels:
    """A row for the recurrence: segments by how many forks lie above them."""

    batches: Sequence[_Batch]
    tokens: Tensor
    """int64: row positions, batch after batch; `T` is a token of zeros."""
    outputs: Tensor
    """int64 `[T]`: where each row position went."""


def _levels_of(layout: Layout) -> _Levels:
    if layout not in _LEVELS:
        _LEVELS[layout] = _levels(layout)
    return _LEVELS[layout]


def _levels(layout: Layout) -> _Levels:
    segments, num_tokens = layout.segments, len(layout.parents)
    tokens: list[np.ndarray] = []
    outputs = np.empty(num_tokens, np.int64)
    batches: list[_Batch] = []
    place = 0
    for members in _members(layout):
        length = int(segments.lengths[members].max())
        continued = bool(np.isin(segments.parents, members).any())
        batches.append(
            _Batch(segments=members, parents=segments.parents[members], length=length, is_continued=continued)
        )
        for member in members.tolist():
            start, own = int(segments.starts[member]), int(segments.lengths[member])
            padded = np.full(length, num_tokens)
            padded[:own] = np.arange(start, start + own)
            tokens.append(padded)
            outputs[start : start + own] = np.arange(place, place + own)
            place += length
    return _Levels(batches=batches, tokens=_moved(np.concatenate(tokens), layout), outputs=_moved(outputs, layout))


def _members(layout: Layout) -> list[np.ndarray]:
    """Numbers of the segments of each batch, first levels first: of one level, and none over twice as long as another."""
    segments = layout.segments
    levels: list[int] = []
    for parent in segments.parents.tolist():
        levels.append(levels[parent] + 1 if parent >= 0 else 0)
    sizes = np.ceil(np.log2(np.maximum(segments.lengths, SHORTEST_CHUNK))).astype(int).tolist()
    keys = list(zip(levels, sizes, strict=True))
    order = sorted(range(len(segments)), key=lambda number: keys[number])
    return [np.array(list(group)) for _, group in groupby(order, key=lambda number: keys[number])]


def _moved(array: np.ndarray, layout: Layout) -> Tensor:
    return torch.from_numpy(array).to(layout.device)


_CHAINS: WeakKeyDictionary[Layout, dict[int, _Chains]] = WeakKeyDictionary()
_LEVELS: WeakKeyDictionary[Layout, _Levels] = WeakKeyDictionary()
