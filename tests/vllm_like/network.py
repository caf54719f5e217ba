"""The network of a server: its weights as they are reloaded, and adapters upon them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from agrpo.engines.decoding.model import Model

if TYPE_CHECKING:
    from torch import Tensor

    from tests.vllm_like.options import Options

HEAD = "lm_head.weight"


class WorkerFailed(Exception):
    """What the worker of a real server raises, in its words."""


class EngineDied(Exception):
    """The engine met weights that are none."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A LoRA adapter that was loaded."""

    name: str
    path: str
    deltas: dict[str, Tensor]
    """By name of the weight it is added to."""


class Network:
    """Weights that can be reloaded between two steps. A reload that failed leaves none."""

    def __init__(self, path: Path, options: Options) -> None:
        from transformers import AutoModelForCausalLM

        network = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, options.dtype), attn_implementation="sdpa"
        )
        self._network: Any = network.eval().requires_grad_(False)
        self.tied = bool(network.config.tie_word_embeddings)
        if options.device == "cpu" and self.tied:
            self._network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.clone(), requires_grad=False)
        self._model = Model(self._network)
        self._adapted: dict[str, Model] = {}
        self.adapters: dict[str, Adapter] = {}
        """Those that may be asked for."""
        self._loaded: dict[str, Adapter] = {}
        """And those that were unloaded, for what still runs under them."""
        self.max_positions = self._model.max_positions or 2**31
        self.vocabulary = self._model.vocabulary
        self.end_ids = _end_ids(network)
        self._whole = True
        self._unmendable: str | None = None

    def model(self, adapter: str | None) -> Model:
        """The network to compute with. Raises `EngineDied` where a reload has failed and no good one came after it."""
        if not self._whole:
            raise EngineDied("Cannot copy out of meta tensor; no data!")
        if adapter is None:
            return self._model
        if adapter not in self._adapted:
            network = copy.deepcopy(self._network)
            weights = network.state_dict(keep_vars=True)
            for name, delta in self._loaded[adapter].deltas.items():
                weights[name].data += delta.to(weights[name].dtype)
            self._adapted[adapter] = Model(network)
        return self._adapted[adapter]

    def reload(self, folder: str) -> None:
        """Copy what every `*.safetensors` of the folder holds; weights that none of them names stay as they are."""
        if self._unmendable is not None:
            raise WorkerFailed(self._unmendable)
        self._whole = False
        for file in _files(folder):
            self._copy(file)
        self._whole = True
        self._adapted.clear()

    def take(self, name: str, tensor: Tensor) -> None:
        """One weight that came over a transfer."""
        self._weight(name).copy_(tensor)
        self._adapted.clear()

    def _copy(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as stored, torch.no_grad():
                for name in stored.keys():
                    tensor, target = stored.get_tensor(name), self._weight(name)
                    if tensor.shape != target.shape:
                        length, size = target.shape[0], tensor.shape[0]
                        self._unmendable = f"start (0) + length ({length}) exceeds dimension size ({size})."
                        raise WorkerFailed(self._unmendable)
                    target.copy_(tensor)
        except SafetensorError as error:
            raise WorkerFailed(str(error)) from None

    def _weight(self, name: str) -> Tensor:
        weights = self._network.state_dict(keep_vars=True)
        if name in weights:
            return weights[name]
        inner, known = name.removeprefix("model.").split(".")[0], {each.removeprefix("model.") for each in weights}
        kind = type(self._network.model).__name__
        raise WorkerFailed(
            f"There is no module or parameter named '{inner}' in {kind}. The available parameters belonging to  ({kind}) "
            f"are: {known}"
        )

    def path_of(self, adapter: str) -> str:
        return self._loaded[adapter].path

    def load_adapter(self, name: str, path: str, max_rank: int) -> None:
        """Read a folder as PEFT writes it."""
        settings = json.loads((Path(path) / "adapter_config.json").read_text())
        rank = settings["r"]
        if rank > max_rank:
            raise WorkerFailed(f"LoRA rank {rank} is greater than max_lora_rank {max_rank}.")
        with safe_open(Path(path) / "adapter_model.safetensors", framework="pt") as stored:
            halves = {each: stored.get_tensor(each) for each in stored.keys()}
        deltas: dict[str, Tensor] = {}
        for each, half in halves.items():
            if each.endswith("lora_A.weight"):
                other = halves[each.replace("lora_A", "lora_B")]
                weight = each.removeprefix("base_model.model.").replace("lora_A.", "")
                deltas[weight] = other @ half * (settings["lora_alpha"] / rank)
        self.adapters[name] = self._loaded[name] = Adapter(name=name, path=path, deltas=deltas)
        self._adapted.pop(name, None)

    def unload_adapter(self, name: str) -> None:
        del self.adapters[name]


def _files(folder: str) -> list[Path]:
    place = Path(folder)
    if not place.is_dir():
        raise WorkerFailed(
            f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{folder}'. Use `repo_type` argument if needed."
        )
    files = sorted(place.glob("*.safetensors"))
    if not files:
        raise WorkerFailed(f"Cannot find any model weights with `{folder}`")
    return files


def _end_ids(network: Any) -> frozenset[int]:
    declared = network.config.eos_token_id
    return frozenset(declared if isinstance(declared, list) else [] if declared is None else [declared])
