"""A checkpoint of one process: weights, optimizer and state as files of one folder, and a manifest that vouches for them.

Whoever calls gives a folder of its own and renames it into place; the manifest is written last, so that a folder with
one is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import save_file

from agrpo.errors import CheckpointError
from agrpo.tensors import owned_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS, MOMENTS, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"
FILES = (WEIGHTS, MOMENTS, STATE)
MOMENT_NAMES = ("exp_avg", "exp_avg_sq")


def write_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, extra: Mapping[str, Any]
) -> None:
    """Write weights, AdamW's moments and step counts, and `extra` (JSON values)."""
    folder.mkdir(parents=True, exist_ok=True)
    states = _optimizer_states(model, optimizer)
    moments = {f"{name}.{moment}": state[moment] for name, state in states.items() for moment in MOMENT_NAMES}
    state = {
        "extra": dict(extra),
        "layout": _layout(model),
        "optimizer_steps": {name: float(state["step"]) for name, state in states.items()},
    }
    _save(owned_tensors(model), folder / WEIGHTS)
    _save(moments, folder / MOMENTS)
    (folder / STATE).write_text(json.dumps(state))
    manifest = {name: {"bytes": (folder / name).stat().st_size, "xxh3_128": _hash(folder / name)} for name in FILES}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def read_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Bring model and optimizer to the bits that were written, and return `extra`.

    Every file is checked before anything is changed. Raises `CheckpointError` that names what is damaged or does not fit.
    """
    verify_checkpoint(folder)
    state = json.loads((folder / STATE).read_text())
    _must_fit(folder, state["layout"], _layout(model))
    _copy(folder / WEIGHTS, owned_tensors(model))
    optimizer.state.clear()
    weights = dict(model.named_parameters())
    for name, steps in state["optimizer_steps"].items():
        moments = {moment: torch.empty_like(weights[name].detach()) for moment in MOMENT_NAMES}
        _copy(folder / MOMENTS, {f"{name}.{moment}": tensor for moment, tensor in moments.items()})
        optimizer.state[weights[name]] = {"step": torch.tensor(steps), **moments}
    return state["extra"]


def verify_checkpoint(folder: Path) -> None:
    """Raise `CheckpointError` naming the first file that is absent or not as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        expected = {name: (manifest[name]["bytes"], manifest[name]["xxh3_128"]) for name in FILES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder} has no readable {MANIFEST} ({error!r}), so it is no whole checkpoint; use another"
        ) from None
    for name, (size, digest) in expected.items():
        file = folder / name
        found = (file.stat().st_size, _hash(file)) if file.is_file() else None
        if found != (size, digest):
            what = "is absent" if found is None else f"has {found[0]} bytes with xxh3_128 {found[1]}"
            raise CheckpointError(
                f"{file} {what}, expected {size} bytes with {digest}; it is damaged: use another checkpoint"
            )


def _optimizer_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """AdamW's state by parameter name; a parameter that never had a gradient has none."""
    return {name: optimizer.state[weight] for name, weight in model.named_parameters() if optimizer.state.get(weight)}


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def _hash(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while piece := opened.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _copy(file: Path, into: Mapping[str, Tensor]) -> None:
    """Fill these tensors from a file, one at a time."""
    with safe_open(file, framework="pt") as stored, torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(stored.get_tensor(name))


def _layout(model: nn.Module) -> dict[str, str]:
    """Type and shape by tensor."""
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in owned_tensors(model).items()}


def _must_fit(folder: Path, stored: Mapping[str, str], expected: Mapping[str, str]) -> None:
    if stored != expected:
        odd = min(name for name in {*stored, *expected} if stored.get(name) != expected.get(name))
        raise CheckpointError(
            f"{folder} holds {odd} as {stored.get(odd)}, this model has it as {expected.get(odd)}; the checkpoint is of "
            "another model: resume with the run's own settings"
        )
