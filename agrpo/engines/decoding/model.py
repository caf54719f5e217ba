"""The network that decodes."""

from __future__ import annotations

import inspect
from itertools import chain
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from agrpo.config import ModelSection
from agrpo.engines.decoding.weights import matched, opened
from agrpo.errors import ModelError
from agrpo.loading import LOADING, loader_of

NOT_LOADED = -1
"""Version of a model without weights, or with half of them. It answers nothing."""


class Model:
    """A causal LM on the CPU whose weights can be exchanged between two forwards."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.version = NOT_LOADED
        self.max_positions: int | None = getattr(network.config.get_text_config(), "max_position_embeddings", None)
        """Most tokens of a sequence; None: the model names no limit."""
        self.vocabulary = len(cast("Tensor", network.get_input_embeddings().weight))
        self.dtype = str(network.dtype).removeprefix("torch.")
        self.num_parameters = network.num_parameters()
        self._network = network
        self._keywords = inspect.signature(network.forward).parameters

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._network.config)

    def select(self, cache: DynamicCache, rows: Tensor) -> None:
        """Keep these rows of the cache, in this order; a row may be named more than once."""
        cache.reorder_cache(cast("torch.LongTensor", rows))

    def next_logits(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache | None = None) -> Tensor:
        """Logits `[S, V]` after the last column of `ids` `[S, T]`. `mask` covers the columns in `cache` too."""
        # transformers 5.24 renamed the first keyword; models that bring their own code keep the old one.
        keywords = {"cache" if "cache" in self._keywords else "past_key_values": cache, "use_cache": cache is not None}
        optional = {"position_ids": positions, "logits_to_keep": 1}
        keywords |= {name: value for name, value in optional.items() if name in self._keywords}
        return self._network(input_ids=ids, attention_mask=mask, **keywords).logits[:, -1]

    def load(self, folder: Path, version: int) -> None:
        """Copy the weights in `folder` into torch's own storage. Raises `EngineError`; what is refused changes nothing."""
        with opened(folder) as stored:
            targets = matched(self._network, stored)
            self.version = NOT_LOADED
            with torch.no_grad():
                for name, target in targets.items():
                    target.copy_(stored.get_tensor(name))
        self.version = version


def load_model(section: ModelSection) -> Model:
    """The network of `section`, its tensors in torch's own storage. Raises `ModelError`."""
    try:
        with LOADING:
            loader = loader_of(section.path, revision=section.revision, trust_remote_code=section.trust_remote_code)
            network = loader.from_pretrained(
                section.path,
                dtype="auto" if section.served_dtype == "auto" else getattr(torch, section.served_dtype),
                revision=section.revision,
                trust_remote_code=section.trust_remote_code,
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"model.path = {section.path!r} cannot be loaded: {_looked_for(section)}: {error}") from error
    for tensor in chain(network.parameters(), network.buffers()):
        # A tensor of a mapped file may lie off a 64-byte line, and that changes the bits of a product.
        tensor.data = tensor.data.clone()
    return Model(network.eval().requires_grad_(False))


def _looked_for(section: ModelSection) -> str:
    folder = Path(section.path).absolute()
    if folder.is_dir():
        return f"looked in {folder} for a causal language model that save_pretrained wrote"
    return f"there is no folder {folder}, and no model of that id was found in the local cache or on the hub"
