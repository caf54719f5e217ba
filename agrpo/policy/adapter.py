"""LoRA and DoRA: small matrices beside frozen weights, put there by PEFT. LoRA, arXiv:2106.09685; DoRA, arXiv:2402.09353."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from agrpo.errors import ConfigError
from agrpo.tensors import ADAPTER, adapter_tensors, outside_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.config import AdapterSection

logger = logging.getLogger(__name__)

NUM_LISTED = 12
"""Names that an error lists."""


def add_adapter(model: PreTrainedModel, section: AdapterSection, seed: int) -> None:
    """Freeze the model's weights and put an adapter beside them, which at first changes nothing.

    It is a function of the settings, the model and the seed, whatever was drawn before. Its weights are float32 whatever the
    type of the model: updates of a usual rate are lost in 16 bits. Raises `ConfigError` for targets that cannot be adapted.
    """
    from peft import LoraConfig, inject_adapter_in_model

    assert section.rank is not None, "an adapter has a rank"
    chosen = targeted(model, section.targets)
    settings: dict[str, Any] = {
        "r": section.rank,
        "lora_alpha": section.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _shortened(model, chosen),
        "use_dora": section.dora,
        "fan_in_fan_out": any(_is_transposed(model.get_submodule(name)) for name in chosen),
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name_or_path,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(**settings), model, ADAPTER)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    num_trained = sum(tensor.numel() for tensor in adapter_tensors(model).values())
    logger.info("adapter of rank %d over %d layers, %d weights trained", section.rank, len(chosen), num_trained)


def targeted(model: PreTrainedModel, targets: Sequence[str]) -> list[str]:
    """Names of the layers that `targets` mean, in the model's order; `all-linear` is every linear one but the output head.

    Of a vision-language model, those of its text model.

    Raises `ConfigError` for a target that names no layer, the output head, or what is not linear.
    """
    head, outside = model.get_output_embeddings(), outside_text(model)
    linear = [
        name
        for name, module in model.named_modules()
        if _is_linear(module) and module is not head and f"{name}.weight" not in outside
    ]
    if targets == "all-linear":
        return linear
    for target in targets:
        _refuse_bad_target(model, target, linear)
    return [name for name in linear if any(_means(target, name) for target in targets)]


def _refuse_bad_target(model: PreTrainedModel, target: str, linear: Sequence[str]) -> None:
    outside = outside_text(model)
    found = [
        name
        for name, _ in model.named_modules()
        if _means(target, name) and not any(other.startswith(f"{name}.") for other in outside)
    ]
    if any(model.get_submodule(name) is model.get_output_embeddings() for name in found):
        raise ConfigError(
            f'adapter.targets: "{target}" is the output head of {type(model).__name__}, which takes no adapter; leave it out'
        )
    odd = [name for name in found if name not in linear]
    if odd or not found:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear})[:NUM_LISTED])
        what = f"means {odd[0]}, which is no linear layer" if odd else "names no layer"
        raise ConfigError(f'adapter.targets: "{target}" {what} of {type(model).__name__}; linear ones are: {known}')


def _means(target: str, name: str) -> bool:
    """As PEFT matches: the whole name, or its end after a dot."""
    return name == target or name.endswith(f".{target}")


def _shortened(model: PreTrainedModel, chosen: Sequence[str]) -> list[str]:
    """Last parts of the names, where those mean no other layer; so that the settings can be read."""
    ends = sorted({name.rpartition(".")[2] for name in chosen})
    meant = [name for name, _ in model.named_modules() if any(_means(end, name) for end in ends)]
    return ends if meant == list(chosen) else list(chosen)


def _is_linear(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Linear or _is_transposed(module)


def _is_transposed(module: torch.nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)
