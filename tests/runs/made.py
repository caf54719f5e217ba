"""Plans of memory over models that are only files, and machines that are only numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agrpo.config import RunConfig, resolve
from agrpo.runs.memory import Machine, Memory, MemoryPlan, Part, plan_memory
from tests.stages.walk import settings

GIB = 2**30
WIDTHS = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
WEIGHTS = 100 * 32 + 48 * 32 + 32
"""Numbers of `a_model`."""


def a_model(folder: Path, **config: Any) -> Path:
    """Files of a model: one embedding of 100 x 32, one matrix of 32 x 48 and a norm."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(WIDTHS | config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    Tokenizer(WordLevel({"a": 0}, "a")).save(str(folder / "tokenizer.json"))
    tensors = {
        "model.embed_tokens.weight": (100, 32),
        "model.layers.0.mlp.up_proj.weight": (48, 32),
        "model.norm.weight": (32,),
    }
    save_file({name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, folder / "model.safetensors")
    return folder


def a_config(place: Path, folder: Path | None = None, **tables: Any) -> RunConfig:
    """Two groups of four rollouts of 6 tokens; the prompt is taken for 16 + 10 tokens."""
    place.mkdir(parents=True, exist_ok=True)
    prompts = place / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [{"role": "user", "content": "7" * 30}]}))
    own = tables.pop("model", {})
    tree = settings(folder or a_model(place / "model"), prompts, place / "runs", **tables)
    tree["model"] |= own
    return RunConfig.build(resolve(values=tree))


def a_machine(gib: float, free: float | None = None, gpus: tuple[float, ...] = (), doubt: str | None = None) -> Machine:
    sizes = [Memory(total=round(size * GIB), free=round(size * GIB)) for size in gpus]
    memory = Memory(total=round(gib * GIB), free=round((free or gib) * GIB))
    return Machine(memory=memory, gpus=tuple(sizes), gpus_doubt=doubt)


def parts_of(plan: MemoryPlan, process: str, place: int = 0) -> dict[str, Part]:
    return {part.what: part for part in plan.places[place].parts if part.process == process}


def planned(config: RunConfig, gib: float = 64) -> MemoryPlan:
    return plan_memory(config, a_machine(gib))
