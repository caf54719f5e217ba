"""Everything outside the settings that would keep a run from working, found before anything starts."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from agrpo.config import ModelSection, RunConfig
from agrpo.environments.checking import clashes, found_environments, unfit_rows
from agrpo.errors import AgrpoError, ModelError
from agrpo.filters import check_filter
from agrpo.prompts import lacks_prompt, messages_of
from agrpo.queue.filesystems.opening import open_filesystem
from agrpo.registry import nearest
from agrpo.rewards import check_facts, check_reward
from agrpo.rewards.fitting import length_warnings, time_problems
from agrpo.rollout_loop.finding import check_rollout_loop
from agrpo.runs import memory
from agrpo.runs.memory.shape import tensor_shapes, weight_files
from agrpo.runs.model_files import TOKENIZER, TOKENIZER_CONFIG, configuration_problems, model_problems
from agrpo.runs.serving import check_servers
from agrpo.templates import template_at
from agrpo.tools import check_tools, load_tools

ROWS_CHECKED = 10_000
"""Prompts looked at before a run starts; a bad one further on is refused alone when its turn comes."""
SPARE_BYTES = 64 * 2**20
_OUT_OF_REACH = re.compile(r"\.experts\.\d+\.|(^|\.)(visual|vision_tower|vision_model|multi_modal_projector)\.")


def check(config: RunConfig, *, folder: str | None = None) -> list[str]:
    """Everything outside the settings that would keep this run from working, a sentence each. Starts nothing."""
    problems = [*_check_model(config), *_check_targets(config), *_check_prompts(config), *check_servers(config)]
    for reward in config.rewards:
        problems += time_problems(reward) or check_reward(reward)
    problems += [problem for one in config.filters for problem in check_filter(one)]
    problems += check_rollout_loop(config.rollout_loop)
    machine = memory.machine_here()
    problems += [
        *_check_ranks(config, machine),
        *_check_devices(config, machine),
        *_check_place(config, folder or config.run.dir),
    ]
    return problems or _check_talk(config) or memory.problems(memory.plan_memory(config, machine))


def unreached_lengths(config: RunConfig) -> list[str]:
    """A sentence for each reward whose lengths no answer has. With tools or in an environment its turns may be many."""
    if config.tools.functions or config.environments.are_given:
        return []
    longest = config.sampling.max_completion_length
    return [warning for reward in config.rewards for warning in length_warnings(reward, longest)]


def impatience(config: RunConfig) -> list[str]:
    """A sentence where the calls of one turn, each within its time, may take longer than the run waits for a group."""
    tools, stall_seconds = config.tools, config.stop.stall_seconds
    longest = tools.max_calls_per_turn * tools.timeout_seconds
    if not (tools.functions or config.environments.are_given) or longest < stall_seconds:
        return []
    return [
        f"tools: a turn may make max_calls_per_turn = {tools.max_calls_per_turn} calls of timeout_seconds = "
        f"{tools.timeout_seconds:g} s each, {longest:g} s in all, and a run of which no group ends for stop.stall_seconds = "
        f"{stall_seconds:g} s is ended; lower one of the first two, or raise the last"
    ]


def _check_ranks(config: RunConfig, machine: memory.Machine) -> list[str]:
    """Processes of the learner that would find no GPU of their own. Without any, they train on the CPU."""
    asked, num_gpus = config.workers.learner_processes or 1, len(machine.gpus)
    if machine.gpus_doubt is not None or not 0 < num_gpus < asked:
        return []
    return [
        f"workers.learner_processes: {asked} processes need a GPU each, and {num_gpus} can be seen (CUDA_VISIBLE_DEVICES, "
        "nvidia-smi); ask for fewer"
    ]


def _check_devices(config: RunConfig, machine: memory.Machine) -> list[str]:
    """GPUs that a reward model asks for, and that nobody can see or the run's servers have."""
    num_gpus = len(machine.gpus)
    if machine.gpus_doubt is not None:
        return []
    served, problems = memory.gpus_of_servers(config, num_gpus), list[str]()
    for model in memory.reward_models(config):
        index, asked = memory.gpu_index(model), f'reward "reward_model": device = "{model.device}"'
        if index is not None and index >= num_gpus:
            problems.append(
                f"{asked}: {num_gpus} GPUs can be seen (CUDA_VISIBLE_DEVICES, nvidia-smi), counted from cuda:0; name another, "
                'or "cpu"'
            )
        elif index in served:
            problems.append(f"{asked}: the run's vLLM servers take {_gpu_names(served)}; {_left(served, num_gpus)}")
    return problems


def _gpu_names(indices: range) -> str:
    return ", ".join(f"cuda:{index}" for index in indices)


def _left(served: range, num_gpus: int) -> str:
    """Where else a reward model may be."""
    if served.stop < num_gpus:
        return f"name one that is free: {_gpu_names(range(served.stop, num_gpus))}"
    if served.start > 1:
        return f"set workers.learner_processes = {served.start - 1}, which leaves cuda:{num_gpus - 1} to it"
    return 'none is free: name cuda:0, which the learner has too, or "cpu", or give the run one GPU more'


def _check_model(config: RunConfig) -> list[str]:
    path = config.model.path
    if os.path.isdir(path):
        return [
            *_check_template(config),
            *model_problems(Path(path), needs_template=config.model.chat_template is None),
        ]
    if path.startswith((".", "/", "~")):
        return [f"model.path: no folder {path}; give a folder written by save_pretrained, or a hub id"]
    return [*_check_template(config), *_check_hub_model(config)]


def _check_template(config: RunConfig) -> list[str]:
    """Whether there is such a template."""
    try:
        if config.model.chat_template is not None:
            template_at(config.model.chat_template)
    except ModelError as error:
        return [str(error)]
    return []


def _check_targets(config: RunConfig) -> list[str]:
    """Layers that an adapter is to stand beside, and that no weight of the model is named after."""
    targets = config.adapter.targets
    if config.adapter.rank is None or isinstance(targets, str):
        return []
    matrices = sorted(_matrices(config))
    layers = [name.removesuffix(".weight") for name in matrices if name.endswith(".weight")]
    known = sorted({layer.rpartition(".")[2] for layer in layers})
    return [
        f'adapter.targets: "{target}" names no layer of {config.model.path}; {nearest(target, known)}'
        for target in targets
        if layers and not any(layer == target or layer.endswith(f".{target}") for layer in layers)
    ]


def _check_talk(config: RunConfig) -> list[str]:
    """What keeps a model whose tokenizer is here from being asked, told of its tools, or its calls from being read."""
    model = _with_tokenizer(config.model)
    kinds, _ = found_environments(config.environments)
    functions = load_tools(config.tools)
    shown = [tools for tools in [{**functions, **kind.tools} for kind in kinds.values()] or [functions] if tools]
    if model is None or not (shown or config.model.chat_template):
        return []
    from agrpo.stages.chosen_template import unfit_template
    from agrpo.stages.rendering import Renderer
    from agrpo.stages.tool_talk import ToolTalk

    try:
        renderer = Renderer(model)
    except ModelError as error:
        return [f"model: {error}"] if model is config.model else []  # of a hub id, not all files may have been fetched
    if (problem := unfit_template(config.model.chat_template, renderer)) is not None:
        return [problem]
    try:
        for tools in shown:
            ToolTalk(renderer, tools, config.tools.call_format)
    except AgrpoError as error:
        return [f"tools: {error}"]
    return []


def _with_tokenizer(model: ModelSection) -> ModelSection | None:
    """The model where its tokenizer lies on this machine; None where it does not, so that nothing is fetched for a look."""
    if os.path.isdir(model.path):
        return model
    from huggingface_hub import try_to_load_from_cache

    found = [
        try_to_load_from_cache(model.path, name, revision=model.revision) for name in (TOKENIZER, TOKENIZER_CONFIG)
    ]
    paths = [path for path in found if isinstance(path, str)]
    return replace(model, path=os.path.dirname(paths[0]), revision=None) if len(paths) == len(found) else None


def _matrices(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Shape by name of the matrices in the model's files, without reading them; empty for a model that is not here.

    Without those that no adapter can stand beside: of experts, which are one tensor in memory, and of parts that see.
    """
    shapes = tensor_shapes(Path(config.model.path))
    return {name: shape for name, shape in shapes.items() if len(shape) == 2 and not _OUT_OF_REACH.search(name)}


def _check_hub_model(config: RunConfig) -> list[str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        hf_hub_download(config.model.path, "config.json", revision=config.model.revision)
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        return [
            f'model.path: "{config.model.path}" is no folder, and no model of that id can be had from the hub: {reason}'
        ]
    return []


def _check_prompts(config: RunConfig) -> list[str]:
    """What is wrong with prompts, and with the environments that they are asked in."""
    kinds, problems = found_environments(config.environments)
    problems += check_tools(config.tools)
    functions = [path.partition(":")[2] for path in config.tools.functions]
    problems += clashes(kinds, functions, [reward.name for reward in config.rewards])
    try:
        source = config.prompts.source()
        if len(source) == 0:
            return [*problems, "prompts: the source has no rows; a run needs at least one prompt"]
        rows = {index: source[index] for index in range(min(len(source), ROWS_CHECKED))}
        for index, row in rows.items():
            if not (config.environments.are_given and lacks_prompt(row)):
                messages_of(row, index)
    except AgrpoError as error:
        return [*problems, f"prompts: {error}"]
    problems += unfit_rows(rows, config.environments, kinds)
    facts = {name for row in rows.values() for name in row} - {"prompt", "environment"}
    brings_columns = config.rollout_loop.rollout_func is not None  # which functions among the rewards may take
    told = [reward for reward in config.rewards if not (brings_columns and ":" in reward.name)]
    return problems + [problem for reward in told for problem in check_facts(reward, facts)]


def _check_place(config: RunConfig, place: str) -> list[str]:
    """Whether the run can be written, and fits."""
    if place.startswith("memory://"):
        return [f"run.dir: {place} is seen by one process only; a run needs a folder or an object store"]
    if "://" in place:
        return _check_store(place)
    standing = Path(place).absolute()
    while not standing.exists():
        standing = standing.parent
    if not standing.is_dir() or not os.access(standing, os.W_OK):
        return [f"run.dir: {standing} cannot be written; choose another folder with --set run.dir=…"]
    if configuration_problems(Path(config.model.path)):
        return []  # what the run keeps is not known
    needed, free = bytes_needed(config), shutil.disk_usage(standing).free
    if free < needed:
        return [
            f"run.dir: {standing} has {free / 2**20:.0f} MiB free; this run keeps up to {needed / 2**20:.0f} MiB of weights "
            "and checkpoints; free some, or choose another folder with --set run.dir=…"
        ]
    return []


def _check_store(url: str) -> list[str]:
    """Whether there is a filesystem of that kind. Asks no store."""
    try:
        open_filesystem(url)
    except AgrpoError as error:
        return [f"run.dir: {error}"]
    return []


def bytes_needed(config: RunConfig) -> int:
    """Published versions, checkpoints with two moments per weight (one more while writing), and the exports."""
    folder = Path(config.model.path)
    weights = sum(file.stat().st_size for file in weight_files(folder) if file.is_file())
    exports = _most_exports(config) * (1 if config.checkpoint.save_only_model else 3)
    versions = config.asynchronous.max_staleness + 3
    heads = versions * _head_bytes(config) if config.engine.needs_head else 0
    if config.adapter.rank is None:
        each = (
            4 if config.divergence.sync_steps else 3
        )  # a reference that follows the policy is a part of every checkpoint
        return weights * (versions + 3 * each + 1 + exports) + heads + SPARE_BYTES
    adapter, models = _adapter_bytes(config), 1 + _most_exports(config)
    if config.adapter.publish == "adapter":
        weights_published = versions * adapter
    else:
        weights_published = versions * weights + heads
    return weights_published + weights * models + adapter * (3 * 3 + 3 * models) + SPARE_BYTES


def _adapter_bytes(config: RunConfig) -> int:
    """Of an adapter over every matrix but embeddings, which are more than those that get one."""
    rank, each = config.adapter.rank or 0, _matrices(config)
    return sum(4 * rank * sum(shape) for name, shape in each.items() if "embed" not in name)


def _head_bytes(config: RunConfig) -> int:
    """Of the output head that is published beside the weights of a model which ties it to its embedding."""
    file = Path(config.model.path) / "config.json"
    if not file.is_file():
        return 0
    document: dict[str, Any] = json.loads(file.read_text("utf-8"))
    inner = {**document, **document.get("text_config", {})}
    if not inner.get("tie_word_embeddings", True):
        return 0
    bytes_each = 4 if config.model.served_dtype == "float32" else 2
    return inner.get("vocab_size", 0) * inner.get("hidden_size", 0) * bytes_each


def _most_exports(config: RunConfig) -> int:
    """That lie on disk at once; those of a run without an end are not known, and not counted."""
    kept, every, last = config.checkpoint.save_total_limit, config.checkpoint.save_steps, config.stop.max_steps
    if every is None:
        return 0
    made = None if last is None else last // every
    return min((number for number in (made, kept) if number is not None), default=0)
