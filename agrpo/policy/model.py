"""Loads the policy, ready for packed rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from agrpo.errors import ModelError
from agrpo.loading import LOADING, loader_of
from agrpo.policy.adapter import add_adapter
from agrpo.policy.balance import settle_balance
from agrpo.policy.precision import compute_in
from agrpo.policy.ranks.group import own_device
from agrpo.policy.ranks.sharding import shard
from agrpo.policy.recomputing import recompute_layers
from agrpo.policy.verifying import refuse_changing_positions, refuse_unknown_layers, verify_packing
from agrpo.tensors import outside_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agrpo.config import AdapterSection, ModelSection
    from agrpo.policy.ranks.group import Group


def load_policy(
    model: ModelSection,
    device: str | None = None,
    *,
    adapter: AdapterSection | None = None,
    seed: int = 0,
    group: Group | None = None,
    micro_tokens: int | None = None,
) -> PreTrainedModel:
    """The model in its configured type, without dropout, its weights in storage of their own, ready for packed rows.

    Of a vision-language model all that reads no text stays as it is, without a gradient.

    `device`: None is the first GPU, or the CPU where there is none. `adapter`: where it has a rank, its weights alone are
    trained; `seed` is theirs. `micro_tokens`: most tokens of a row; None: it is not known. `group`: whose ranks all load
    it, each to hold its share, on its own device; None: a process alone. Raises `ModelError` where nothing is found, where
    weights are missing, or where packed training would be wrong, and `ConfigError` for an adapter or a balancing loss that
    this model cannot have.
    """
    policy: Any = _read(model)
    refuse_unknown_layers(policy)
    if micro_tokens is not None:
        refuse_changing_positions(policy, micro_tokens)
    _freeze_what_reads_no_text(policy)
    settle_balance(policy, model.router_aux_loss_coef)
    if adapter is not None and adapter.rank is not None:
        add_adapter(policy, adapter, seed)
    _drop_dropout(policy)
    # A policy in training mode may differ from the one that samples: routers add noise, layers are skipped.
    policy.eval()
    compute_dtype = getattr(torch, model.compute_dtype) if model.compute_dtype else None
    if compute_dtype is not None:
        compute_in(policy, compute_dtype)
    place = torch.device(device) if device else (group.device if group else own_device(0))
    recomputes = model.activation_checkpointing
    if recomputes or (recomputes is None and place.type == "cuda"):
        recompute_layers(policy)
    if group is not None and group.mesh is not None:
        # On its device a layer is whole for a moment, and the model never.
        shard(policy, group, compute_dtype)
    else:
        _own_storage(policy)
        policy.to(place)
    verify_packing(policy)
    return policy


def _read(model: ModelSection) -> PreTrainedModel:
    _refuse_missing_folder(model.path)
    try:
        with LOADING:
            loader = loader_of(model.path, revision=model.revision, trust_remote_code=model.trust_remote_code)
            policy, loading = loader.from_pretrained(
                model.path,
                dtype="auto" if model.dtype == "auto" else getattr(torch, model.dtype),
                revision=model.revision,
                trust_remote_code=model.trust_remote_code,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        folder, reason = Path(model.path).absolute(), str(error).strip().partition("\n")[0]
        where = f"from {folder}" if folder.is_dir() else f"(there is no folder {folder}, and from the hub)"
        advice = "give a folder written by save_pretrained, or the id of one on the hub"
        if "custom code" in reason:
            advice = "read that code, and set model.trust_remote_code = true where you trust it"
        raise ModelError(
            f'model.path = "{model.path}": no causal language model could be loaded {where}: {reason}; {advice}'
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


def _freeze_what_reads_no_text(model: PreTrainedModel) -> None:
    outside = outside_text(model)
    for name, weight in model.named_parameters():
        if name in outside:
            weight.requires_grad_(False)


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
