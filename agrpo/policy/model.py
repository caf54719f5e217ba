"""Loads the policy, and refuses a model that packed training would get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError

from agrpo.errors import ModelError
from agrpo.loading import LOADING
from agrpo.policy.attention import PACKED, attention_of, register_attention
from agrpo.policy.logprobs import row_logprobs
from agrpo.records.batch import Row

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from agrpo.config import ModelSection

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
"""Layer types whose only mixing of tokens is softmax attention."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Largest mean difference in nats between a packed and a plain forward, by type of the weights: several times what
another kernel alone changes, and well below what a leak between samples does."""
LONGEST_CHECKED_WINDOW = 1024
"""Sliding windows up to here are checked with a sample that is longer."""


def load_policy(model: ModelSection, device: str | None = None) -> PreTrainedModel:
    """The model in its configured type, without dropout, its weights in storage of their own, ready for packed rows.

    `device`: None is the first GPU, or the CPU where there is none. Raises `ModelError` where nothing is found, where
    weights are missing, or where packed training would be wrong.
    """
    policy: Any = _read(model)
    refuse_unknown_layers(policy)
    _drop_dropout(policy)
    _own_storage(policy)
    policy.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # A policy in training mode may differ from the one that samples: routers add noise, layers are skipped.
    policy.eval()
    verify_packing(policy)
    return policy


def refuse_unknown_layers(model: PreTrainedModel) -> None:
    """Raise `ModelError` for layers that packed attention does not know, by name."""
    family, config = type(model).__name__, model.config.get_text_config()
    unknown = sorted(set(getattr(config, "layer_types", None) or []) - KNOWN_LAYERS)
    if unknown:
        raise ModelError(
            f"{family} has layers of type {', '.join(unknown)}; packed training knows {', '.join(sorted(KNOWN_LAYERS))}: use a "
            "model whose tokens meet in softmax attention alone"
        )
    sinks = [name for name, _ in model.named_parameters() if name.rpartition(".")[2] == "sinks"]
    if sinks:
        raise ModelError(
            f"{family} has attention sinks ({sinks[0]}), which packed attention does not compute; use another model"
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ModelError(
            f"{family} caps its attention scores (attn_logit_softcapping = {config.attn_logit_softcapping}), which packed "
            "attention does not compute; use another model"
        )


def verify_packing(model: PreTrainedModel) -> None:
    """Compare samples in one row with the model's own forward of each alone, and leave the model set for packed rows.

    Raises `ModelError` where they disagree: the family mixes tokens, counts positions or ends in a way this package
    does not know, and its training would be silently wrong.
    """
    samples = _random_samples(model)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = torch.cat([_plain_logprobs(model, sample) for sample in samples])
        _set_packed(model)
        packed = _packed_logprobs(model, samples)
    difference, tolerance = float((packed - plain).abs().mean()), TOLERANCE[model.dtype]
    if not difference <= tolerance:
        raise ModelError(
            f"{type(model).__name__} gives a mean log-prob of {float(plain.mean()):.4f} to samples read alone and of "
            f"{float(packed.mean()):.4f} to the same samples in one row (mean difference {difference:.2g} nats, expected at "
            f"most {tolerance:g}); this family cannot be trained in packed rows: use another model"
        )


def _read(model: ModelSection) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    _refuse_missing_folder(model.path)
    loader: Any = AutoModelForCausalLM
    try:
        with LOADING:
            policy, loading = loader.from_pretrained(
                model.path,
                dtype=getattr(torch, model.dtype),
                revision=model.revision,
                trust_remote_code=model.trust_remote_code,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        folder, reason = Path(model.path).absolute(), str(error).strip().partition("\n")[0]
        where = f"from {folder}" if folder.is_dir() else f"(there is no folder {folder}, and from the hub)"
        raise ModelError(
            f'model.path = "{model.path}": no causal language model could be loaded {where}: {reason}; give a folder '
            "written by save_pretrained, or the id of one on the hub"
        ) from error
    absent = sorted([*loading["missing_keys"], *(str(key) for key in loading["mismatched_keys"])])
    if absent:
        raise ModelError(
            f'model.path = "{model.path}": {len(absent)} weights of {type(policy).__name__} are absent or of another shape, '
            f"such as {absent[0]}; they would start at random: give the folder of a whole model"
        )
    return policy


def _refuse_missing_folder(path: str) -> None:
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f'model.path = "{path}": the folder holds no config.json; give one written by save_pretrained'
            )
    elif path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
        raise ModelError(
            f'model.path = "{path}": no such folder (looked for {folder.absolute()}); give a folder written by '
            "save_pretrained, or the id of a model on the hub"
        )


def _drop_dropout(model: PreTrainedModel) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _own_storage(model: PreTrainedModel) -> None:
    # Weights mapped from a file lie at odd addresses, and the last bits of a product depend on the alignment.
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def _set_packed(model: PreTrainedModel) -> None:
    register_attention()
    model.set_attn_implementation(PACKED)
    if attention_of(model) != PACKED:
        raise ModelError(
            f"{type(model).__name__} does not let its attention be replaced, so it cannot be trained in packed rows; use a "
            "model built on transformers' attention interface"
        )


def _random_samples(model: PreTrainedModel) -> list[list[int]]:
    """Two of equal length, a shorter one, and one that is longer than a short sliding window."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    last = window + 8 if 0 < window <= LONGEST_CHECKED_WINDOW else 12
    generator = torch.Generator().manual_seed(0)
    lengths = [9, 9, 5, last]
    return [torch.randint(0, config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def _plain_logprobs(model: PreTrainedModel, sample: list[int]) -> Tensor:
    whole: Any = model
    tokens = torch.tensor([sample], device=model.device)
    logits = whole(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def _packed_logprobs(model: PreTrainedModel, samples: Sequence[list[int]]) -> Tensor:
    try:
        return row_logprobs(model, _row_of(samples), temperature=1.0).logprobs
    except (TypeError, AttributeError) as error:
        raise ModelError(
            f"{type(model).__name__} does not take positions and a row's layout ({error}); this family cannot be trained in "
            "packed rows: use another model"
        ) from error


def _row_of(samples: Sequence[list[int]]) -> Row:
    """All tokens but each sample's first are trained."""
    positions = np.concatenate([np.arange(len(sample)) for sample in samples])
    tokens = np.concatenate([np.array(sample, np.int64) for sample in samples])
    places = np.arange(len(tokens))
    trained = positions > 0
    return Row(
        tokens=tokens,
        positions=positions,
        parents=np.where(trained, places - 1, -1),
        index=places[trained] - 1,
        targets=tokens[trained],
        sample=np.repeat(np.arange(len(samples)), [len(sample) - 1 for sample in samples]),
        sampler_logprobs=np.zeros(trained.sum(), np.float32),
        advantages=np.zeros(trained.sum(), np.float32),
        num_samples=len(samples),
    )
