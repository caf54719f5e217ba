"""A checkpoint of a run: weights, optimizer and state as files of one folder, and a manifest that vouches for them.

A policy that is shared out over processes has the same one: rank 0 gathers a whole tensor at a time and writes it, so that it
loads at any number of processes.

Whoever calls gives a folder of its own and renames it into place; the manifest is written last, so that a folder with
one is whole. An export for users holds the same beside a model as `save_pretrained` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from agrpo.checkpoints.manifest import refuse_foreign, verified, write_manifest
from agrpo.errors import CheckpointError, CheckpointMismatch
from agrpo.records.manifest import CheckpointManifest, RunIdentity
from agrpo.records.progress import CheckpointState
from agrpo.tensors import base_digest, digest_of, digest_of_tensor, has_adapter, served_in, trained_tensors
from agrpo.tensors.file import fill_from, save_tensors
from agrpo.tensors.moments import moments_of, renew_moments, step_counts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from agrpo.tensors.whole import Tensors

WEIGHTS, MOMENTS, STATE, EXTRA = "model.safetensors", "optimizer.safetensors", "state.json", "extra.safetensors"
REFERENCE = "reference.safetensors"
"""Weights of a reference policy that follows the one in training."""
MASTERS = "masters.safetensors"
"""Within an export in a narrower type than weights are trained in: the weights themselves."""
BASE = "the base"
"""Under which a layout names the frozen weights of a model with an adapter."""


@dataclass(kw_only=True)
class Keepsakes:
    """What parts of a run keep in its checkpoints beside model and optimizer, each under a name of its own."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of JSON."""


def write_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: RunIdentity,
    state: CheckpointState,
    keepsakes: Keepsakes | None = None,
    reference: Tensors | None = None,
) -> None:
    """Write everything of a run at a step. `reference`: weights of a reference policy that are state; None: there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(trained_tensors(model), folder / WEIGHTS)
    if reference is not None:
        save_tensors(reference, folder / REFERENCE)
    write_training_state(folder, model, optimizer, keepsakes or Keepsakes())
    write_manifest(folder, run=run, step=state.step, digest=state.digest, state=state)


def write_training_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, keepsakes: Keepsakes
) -> None:
    """Write what training needs beside the weights: AdamW's moments and step counts, and the keepsakes."""
    document = {
        "layout": _layout(model),
        "optimizer_steps": step_counts(model, optimizer),
        "keepsakes": keepsakes.values,
    }
    save_tensors(moments_of(model, optimizer), folder / MOMENTS)
    (folder / STATE).write_text(json.dumps(document))
    if keepsakes.tensors:
        save_tensors(keepsakes.tensors, folder / EXTRA)


def write_masters(folder: Path, model: nn.Module) -> None:
    """Write the weights themselves beside an export that is in a narrower type; elsewhere it holds them."""
    if served_in(model) is not None and not has_adapter(model):
        save_tensors(trained_tensors(model), folder / MASTERS)


def read_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    run: RunIdentity,
    keepsakes: Keepsakes,
    reference: Tensors | None = None,
) -> CheckpointState:
    """Bring model and optimizer to the bits that were written, fill `keepsakes`, and return what the run counted.

    `reference`: weights of a reference policy to be brought there too; None: it is what it was loaded as.

    Every file is checked before anything is changed. Raises `CheckpointError` that names what is damaged, and
    `CheckpointMismatch` for what is whole and of another run, another model or a later agrpo.
    """
    manifest = verified(folder)
    refuse_foreign(manifest, run, str(folder))
    if manifest.state is None:
        raise CheckpointMismatch(f"{folder} is an export: begin a run from it with model.path, none goes on from it")
    document = _document(folder, manifest, model, WEIGHTS, *([] if reference is None else [REFERENCE]))
    _copy(folder / WEIGHTS, trained_tensors(model))
    if reference is not None:
        _copy(folder / REFERENCE, reference)
    _read_moments(folder, document, model, optimizer)
    _fill(keepsakes, folder, manifest, document)
    return manifest.state


def read_training_state(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, keepsakes: Keepsakes
) -> CheckpointManifest:
    """Bring the optimizer of a model that was loaded from an export to the bits that were written beside it.

    A model whose adapter was trained is loaded as the run did, and its adapter from the export's `adapter/`.

    Raises `CheckpointError` as `read_checkpoint` does, and where the model's weights are not the export's.
    """
    manifest = verified(folder)
    document = _document(folder, manifest, model)
    if MASTERS in manifest.files:
        _copy(folder / MASTERS, trained_tensors(model))
    digest = digest_of({name: digest_of_tensor(tensor) for name, tensor in trained_tensors(model).items()})
    if digest != manifest.digest:
        raise CheckpointMismatch(
            f"{folder} was exported with weights of digest {manifest.digest}, this model has {digest}: load the model from "
            "the same folder, in the type it was saved in"
        )
    _read_moments(folder, document, model, optimizer)
    _fill(keepsakes, folder, manifest, document)
    return manifest


def _document(folder: Path, manifest: CheckpointManifest, model: nn.Module, *needed: str) -> dict[str, Any]:
    """`state.json`, if the folder has all that is needed and fits the model."""
    absent = [name for name in (MOMENTS, STATE, *needed) if name not in manifest.files]
    if absent:
        raise CheckpointError(f"{folder} holds no {', '.join(absent)}: it was saved without what training needs")
    document = json.loads((folder / STATE).read_text())
    _must_fit(folder, document["layout"], _layout(model))
    return document


def _read_moments(folder: Path, document: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    renew_moments(model, optimizer, document["optimizer_steps"])
    _copy(folder / MOMENTS, moments_of(model, optimizer))


def _fill(keepsakes: Keepsakes, folder: Path, manifest: CheckpointManifest, document: dict[str, Any]) -> None:
    keepsakes.values = document["keepsakes"]
    keepsakes.tensors = load_file(folder / EXTRA) if EXTRA in manifest.files else {}


def _copy(file: Path, into: Tensors) -> None:
    """Fill these tensors from a file, one at a time. Raises `CheckpointError` where it is gone since it was verified."""
    try:
        fill_from(file, into)
    except (OSError, RuntimeError) as error:
        if file.exists():
            raise
        raise CheckpointError(f"{file} was removed while it was read ({error}); use another checkpoint") from error


def _layout(model: nn.Module) -> dict[str, str]:
    """Type and shape by tensor that is trained, and which base an adapter stands beside."""
    sources = trained_tensors(model).sources
    trained = {name: f"{source.dtype} {source.shape}" for name, source in sources.items()}
    return {**trained, BASE: f"digest {base_digest(model)}"} if has_adapter(model) else trained


def _must_fit(folder: Path, stored: Mapping[str, str], expected: Mapping[str, str]) -> None:
    if stored != expected:
        odd = min(name for name in {*stored, *expected} if stored.get(name) != expected.get(name))
        raise CheckpointMismatch(
            f"{folder} holds {odd} as {stored.get(odd)}, this model has it as {expected.get(odd)}; the checkpoint is of "
            "another model: resume with the run's own settings"
        )
