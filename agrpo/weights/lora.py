"""Adapters that travel as folders, in PEFT's format: as PEFT loads them, and vLLM's `/v1/load_lora_adapter`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from agrpo.errors import StoreError
from agrpo.tensors import ADAPTER, adapter_tensors, digest_of, digest_of_tensor
from agrpo.tensors.file import save_tensors
from agrpo.weights.filesystem import digests_in, opened

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
KEPT_SETTINGS = (
    "base_model_name_or_path",
    "bias",
    "fan_in_fan_out",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "target_modules",
    "task_type",
    "use_dora",
)
"""Settings that differ from those PEFT takes where a file says nothing; all others are a version of PEFT's own."""


def write_adapter(folder: Path, model: nn.Module) -> None:
    """Write the model's adapter: its tensors, and the settings that say how they are added to the base."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(adapter_tensors(model), folder / WEIGHTS)
    (folder / SETTINGS).write_bytes(_settings(model))


def adapter_digest(model: nn.Module) -> str:
    """Of what `write_adapter` writes: tensors and settings."""
    digests = {name: digest_of_tensor(tensor) for name, tensor in adapter_tensors(model).items()}
    return _whole_digest(digests, _settings(model))


def check_adapter(folder: Path, digest: str) -> None:
    """Raise `StoreError` unless the folder's tensors and settings have this digest: nothing else is ever loaded."""
    file = folder / SETTINGS
    try:
        found = _whole_digest(digests_in(folder / WEIGHTS), file.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"{file}: no such file; expected the settings of a published adapter") from None
    if found != digest:
        raise StoreError(
            f"{folder / WEIGHTS} and {SETTINGS} hold an adapter with digest {found}, expected {digest}; they are damaged or of "
            "another version: they must not be loaded"
        )


def read_adapter(folder: Path, model: nn.Module) -> None:
    """Fill the model's adapter from a folder. Raises `StoreError` where it is another adapter, or torn."""
    expected = adapter_tensors(model)
    with opened(folder / WEIGHTS) as stored:
        odd = sorted(expected.keys() ^ set(stored.keys()))
        if odd:
            raise StoreError(
                f"{folder / WEIGHTS} and this model's adapter differ in {len(odd)} tensors, such as {odd[0]}; make the adapter "
                f"with the settings in {folder / SETTINGS}"
            )
        for name in expected:
            expected.fill(name, stored.get_tensor(name))


def _settings(model: nn.Module) -> bytes:
    """As PEFT reads them; the same bytes for the same adapter."""
    configs: Mapping[str, Any] = vars(model)["peft_config"]
    settings = configs[ADAPTER].to_dict()
    kept = {name: settings[name] for name in KEPT_SETTINGS}
    kept |= {"inference_mode": True, "target_modules": sorted(kept["target_modules"])}
    return json.dumps(kept, indent=2, sort_keys=True).encode()


def _whole_digest(tensors: Mapping[str, str], settings: bytes) -> str:
    return digest_of({**tensors, SETTINGS: xxhash.xxh3_128_hexdigest(settings)})
