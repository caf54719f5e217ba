"""A model's tensors by name, and the digests that tell whether two models hold the same weights.

    whole      each is made when it is asked for: a model's weights may be shared out over processes
    moments    the optimizer's, in the same way
    file       written one after the other

A model may have an adapter (LoRA, as PEFT puts it there): matrices beside frozen weights, which are then its base. It may
have parts beside its text model, such as eyes: they stay as they were loaded, and are neither published nor digested.
It may be served in another type than its weights are held in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import xxhash

from agrpo.tensors.whole import Source, Tensors, shards_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

ADAPTER = "default"
"""Name of the adapter within a model."""
FILED_UNDER = "base_model.model."
"""What begins every name in an adapter's file."""


def owned_tensors(model: nn.Module) -> Tensors:
    """Parameters and persistent buffers under their state-dict names; a tied weight appears once, under its first."""
    kept, shards = model.state_dict().keys(), shards_of(model)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    buffers = {name: Source.here(value.detach()) for name, value in model.named_buffers() if name in kept}
    if shards is None:
        return Tensors({name: Source.here(weight) for name, weight in weights.items()} | buffers)
    return Tensors({name: Source.shared_out(weight, shards, name) for name, weight in weights.items()} | buffers)


def text_tensors(model: nn.Module) -> Tensors:
    """`owned_tensors`, less those of parts that read no text."""
    outside, owned = outside_text(model), owned_tensors(model)
    return owned.only(name for name in owned if name not in outside)


def outside_text(model: nn.Module) -> frozenset[str]:
    """Names of the tensors of a vision-language model that are no part of its text model; none of any other model."""
    config: Any = getattr(model, "config", None)
    if config is None or config.get_text_config() is config:
        return frozenset()
    whole: Any = model
    parts = [whole.get_decoder(), whole.get_input_embeddings(), whole.get_output_embeddings()]
    inside = {id(tensor) for part in parts if part is not None for tensor in part.state_dict(keep_vars=True).values()}
    return frozenset(name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in inside)


def trained_tensors(model: nn.Module) -> Tensors:
    """All that training may move: the adapter's tensors where the model has one, else all of its text model."""
    return adapter_tensors(model) if has_adapter(model) else text_tensors(model)


def has_adapter(model: nn.Module) -> bool:
    """Whether the model trains an adapter, and its own weights are frozen."""
    return ADAPTER in getattr(model, "peft_config", ())


def adapter_tensors(model: nn.Module) -> Tensors:
    """The adapter's tensors under the names that PEFT gives them in a file."""
    owned = owned_tensors(model).sources
    return Tensors({_name_in_file(name): source for name, source in owned.items() if _is_adapter(name)})


def merged_tensors(model: nn.Module) -> Tensors:
    """`owned_tensors` as they would be without the adapter, which is added to the weights it stands beside.

    Those are new tensors, on the CPU; all others, and all of a model without an adapter, are the model's own.
    """
    adapted, owned = _adapted_layers(model), owned_tensors(model)
    return Tensors(
        {
            _base_name(name): _merged_source(name, adapted[name], owned) if name in adapted else source
            for name, source in owned.sources.items()
            if not _is_adapter(name)
        }
    )


def published_tensors(model: nn.Module) -> Tensors:
    """What an engine is given: the text model's tensors, an adapter merged, in the type they are served in."""
    outside, merged = outside_text(model), _served(model, merged_tensors(model))
    return merged.only(name for name in merged if name not in outside)


def exported_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole model under all names of its tensors, an adapter merged, in the type it is served in.

    All at once, as `save_pretrained` takes it; where the model is shared out, in this process's memory.
    """
    shared_out = shards_of(model) is not None
    served = _served(model, merged_tensors(model))
    merged = {name: tensor.cpu() if shared_out else tensor for name, tensor in served.items()}
    owned = {id(tensor): _base_name(name) for name, tensor in dict(model.named_parameters()).items()}
    state = model.state_dict(keep_vars=True)
    return {
        _base_name(name): merged[owned.get(id(tensor), _base_name(name))]
        for name, tensor in state.items()
        if not _is_adapter(name)
    }


def serve_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Have `published_tensors` and `exported_state` give this type."""
    _SERVED[model] = dtype


def served_in(model: nn.Module) -> torch.dtype | None:
    """What was said by `serve_in`. None: nothing was, and tensors are given in the types they have."""
    return _SERVED.get(model)


_SERVED: WeakKeyDictionary[nn.Module, torch.dtype] = WeakKeyDictionary()


def _served(model: nn.Module, tensors: Tensors) -> Tensors:
    dtype = served_in(model)
    if dtype is None:
        return tensors
    sources = tensors.sources.items()
    return Tensors(
        {
            name: source.then(lambda tensor: tensor.to(dtype), dtype) if source.dtype.is_floating_point else source
            for name, source in sources
        }
    )


def base_digest(model: nn.Module) -> str:
    """Of the weights that an adapter leaves alone. Read once, as they never change."""
    if model not in _BASES:
        owned = text_tensors(model).items()
        digests = {_base_name(name): digest_of_tensor(tensor) for name, tensor in owned if not _is_adapter(name)}
        _BASES[model] = digest_of(digests)
    return _BASES[model]


_BASES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _is_adapter(name: str) -> bool:
    return f".{ADAPTER}." in name and ".lora_" in name


def _name_in_file(name: str) -> str:
    # A magnitude is a layer within the model, and a tensor in the file.
    ending = "" if ".lora_magnitude_vector." in name else ".weight"
    return f"{FILED_UNDER}{name.removesuffix(f'.{ADAPTER}.weight')}{ending}"


def _base_name(name: str) -> str:
    return name.replace(".base_layer.", ".")


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Layers with an adapter by the name of the weight that it changes."""
    if not has_adapter(model):
        return {}
    found = {f"{name}.base_layer.weight": module for name, module in model.named_modules()}
    return {name: layer for name, layer in found.items() if hasattr(layer, "get_delta_weight")}


def _merged_source(name: str, layer: Any, owned: Tensors) -> Source:
    return owned.sources[name].then(
        lambda weight: _merged(weight, name.removesuffix(".base_layer.weight"), layer, owned)
    )


def _merged(weight: Tensor, name: str, layer: Any, owned: Tensors) -> Tensor:
    """The weight that gives what the layer and its adapter give together, rounded once to the layer's type. On the CPU.

    LoRA, arXiv:2106.09685, equation 3. DoRA: every output's row has the length that is trained, arXiv:2402.09353, equation 5.
    """
    import torch

    with torch.no_grad():
        product = owned[f"{name}.lora_B.{ADAPTER}.weight"] @ owned[f"{name}.lora_A.{ADAPTER}.weight"]
        changed = weight + (product.T if layer.fan_in_fan_out else product) * layer.scaling[ADAPTER]
        if ADAPTER in layer.lora_magnitude_vector:
            rows = changed.T if layer.fan_in_fan_out else changed
            lengths = torch.linalg.norm(rows, dim=1)
            rows = (owned[f"{name}.lora_magnitude_vector.{ADAPTER}.weight"] / lengths).unsqueeze(1) * rows
            changed = rows.T if layer.fan_in_fan_out else rows
        return changed.to(weight.dtype).contiguous().cpu()


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedHead:
    """An output head that is another tensor of the model."""

    name: str
    tied_to: str
    """Name under which `owned_tensors` has it."""


def tied_head(model: nn.Module) -> TiedHead | None:
    """The output head of a model that has it under another name, such as its embedding's; None where it is its own."""
    find_head: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = getattr(find_head(), "weight", None)
    names = [name for name, tensor in model.state_dict(keep_vars=True).items() if tensor is head]
    owned = owned_tensors(model)
    tied_to = next((name for name in names if name in owned), None)
    other = next((name for name in names if name not in owned), None)
    return TiedHead(name=other, tied_to=tied_to) if other and tied_to else None


def digest_of_tensor(tensor: Tensor) -> str:
    """32 hex digits of the tensor's type, shape and bits."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = xxhash.xxh3_128(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(flat.numpy().data)
    return digest.hexdigest()


def digest_of(digests: Mapping[str, str]) -> str:
    """32 hex digits of digests by tensor, whatever their order."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return xxhash.xxh3_128_hexdigest(lines.encode())
