"""Rules that no setting can see alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agrpo.config.objective import DivergenceSection, objective_problems
from agrpo.config.sections import (
    AdapterSection,
    CheckpointSection,
    EnvironmentsSection,
    ModelSection,
    RewardSection,
    RolloutLoopSection,
    ToolsSection,
)
from agrpo.config.serving import serving_problems
from agrpo.records.sampling import Sampling

if TYPE_CHECKING:
    from agrpo.aggregations import Aggregation
    from agrpo.engines import EnginePart
    from agrpo.losses import Loss

HEAD = "lm_head"
"""What most families call their output head; others are refused when the model is loaded."""
_KNOBS = ("alpha", "targets", "dora", "publish")
_CALLING = (
    "max_tool_calling_iterations",
    "max_calls_per_turn",
    "timeout_seconds",
    "max_result_characters",
    "call_format",
)


def cross_checks(
    sections: Mapping[str, Any],
    sampling: Sampling,
    rewards: list[RewardSection],
    engine: EnginePart,
    *,
    loss: Loss,
    aggregation: Aggregation,
) -> list[str]:
    """What no setting can see alone."""
    problems = [*_sampling_problems(sampling, loss), *objective_problems(sections, loss, aggregation)]
    stop, optimizer, asynchronous = sections["stop"], sections["optimizer"], sections["async"]
    if stop.max_steps is None and stop.epochs is None:
        problems.append("stop: says no end; set stop.max_steps or stop.epochs")
    if optimizer.scheduler == "constant" and optimizer.warmup_steps:
        problems.append(
            'optimizer.warmup_steps: the schedule "constant" has no warm-up; set optimizer.scheduler = "constant_with_warmup"'
        )
    if sections["step"].micro_tokens <= sampling.max_completion_length:
        problems.append(
            f"step.micro_tokens = {sections['step'].micro_tokens}: a prompt and a completion of "
            f"engine.max_completion_length = {sampling.max_completion_length} tokens do not fit; raise the first or lower the second"
        )
    if asynchronous.max_concurrent_rollouts < sampling.num_generations:
        problems.append(
            f"async.max_concurrent_rollouts = {asynchronous.max_concurrent_rollouts}: one group has "
            f"engine.num_generations = {sampling.num_generations} rollouts; allow at least that many"
        )
    if sampling.reproducible and not engine.can_reproduce:
        problems.append("engine.reproducible: this engine cannot repeat a request bit for bit; use transformers")
    problems += _precision_problems(sections["model"], sections["adapter"])
    problems += _ignored_exports(sections["checkpoint"])
    problems += serving_problems(engine, sections["workers"], sampling)
    problems += _adapter_problems(sections["adapter"], engine)
    problems += _reference_problems(sections["divergence"], sections["adapter"])
    problems += _tool_problems(sections["tools"], sections["environments"], stop.stall_seconds)
    problems += _environment_problems(sections["environments"], stop.stall_seconds)
    problems += _loop_problems(sections["rollout_loop"], sections, stop.stall_seconds)
    place = sections["run"].dir
    if sections["store"].max_bytes is not None and "://" in place and not place.startswith("file://"):
        problems.append(
            f"store.max_bytes: run.dir is {place}, whose bytes are not counted; leave it out and bound the bucket itself"
        )
    names = [reward.name for reward in rewards]
    problems += [
        f'rewards: "{name}" is listed twice; its values could not be told apart'
        for name in {*names}
        if names.count(name) > 1
    ]
    return problems


def _sampling_problems(sampling: Sampling, loss: Loss) -> list[str]:
    problems: list[str] = []
    if sampling.top_p < 1.0 and sampling.top_k == 0:
        problems.append(
            "engine.top_p: below 1 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if sampling.min_p > 0.0 and sampling.top_k == 0:
        problems.append(
            "engine.min_p: above 0 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if loss.num_top > 0 and sampling.num_sampler_logprobs == 0:
        problems.append(
            "engine.num_sampler_logprobs = 0: this loss reads the sampler's most likely tokens; leave it out, which asks for "
            f'{loss.num_top}, or set loss.name = "clip", which reads none'
        )
    return problems


def _reference_problems(divergence: DivergenceSection, adapter: AdapterSection) -> list[str]:
    follows = divergence.sync_steps is not None
    refused = {
        f"divergence.sync_steps = {divergence.sync_steps}: there is no reference policy that could follow, since "
        "divergence.coefficient is 0; set the coefficient above 0, or leave sync_steps out": follows
        and divergence.coefficient == 0,
        f"divergence.sync_steps = {divergence.sync_steps}: with adapter.rank the reference is the model without its adapter, "
        "which no mixture of weights can follow; leave sync_steps out, or train all weights": follows
        and adapter.rank is not None,
        f"divergence.mixup = {divergence.mixup:g}: says how far the reference policy moves, and it stays where it is; set "
        "divergence.sync_steps, or leave mixup out": not follows and divergence.mixup != DivergenceSection().mixup,
    }
    return [problem for problem, is_so in refused.items() if is_so]


def _precision_problems(model: ModelSection, adapter: AdapterSection) -> list[str]:
    if model.dtype == "float16" and adapter.rank is None:
        return [
            "model.dtype: weights in float16 are lost in their first step, since AdamW's epsilon is 0 in that type; set "
            '"bfloat16", or train an adapter beside them (adapter.rank = 16)'
        ]
    if model.mixed_precision is None:
        return []
    if model.mixed_precision == "float16":
        return [
            "model.mixed_precision: gradients in float16 vanish unless the loss is scaled, which is not offered; set "
            '"bfloat16", or leave it out'
        ]
    if model.dtype != "float32":
        return [
            f"model.mixed_precision: keeps weights in float32 beside arithmetic in {model.mixed_precision}; leave model.dtype "
            f'("{model.dtype}") out, or set it alone to have everything in that type'
        ]
    return []


def _adapter_problems(adapter: AdapterSection, engine: EnginePart) -> list[str]:
    if adapter.rank is None:
        unused = AdapterSection()
        said = [name for name in _KNOBS if getattr(adapter, name) != getattr(unused, name)]
        return [
            f"adapter.{name}: says what an adapter is like, and there is none; set adapter.rank, or leave it out"
            for name in said
        ]
    problems: list[str] = []
    targets = [] if isinstance(adapter.targets, str) else adapter.targets
    if any(target.rpartition(".")[2] == HEAD for target in targets):
        problems.append(f'adapter.targets: "{HEAD}" is the output head, which takes no adapter; leave it out')
    if adapter.publish == "adapter" and adapter.dora:
        problems.append('adapter.publish: "adapter" cannot be served with adapter.dora = true; set "merged", or "auto"')
    elif adapter.publish == "adapter" and not engine.takes_adapters:
        problems.append('adapter.publish: this engine takes whole weights alone; set "merged", or "auto"')
    return problems


def _tool_problems(tools: ToolsSection, environments: EnvironmentsSection, stall_seconds: float) -> list[str]:
    if not tools.functions and not environments.are_given:
        unused = ToolsSection()
        said = [name for name in _CALLING if getattr(tools, name) != getattr(unused, name)]
        return [
            f"tools.{name}: says how functions are called, and there is none; set tools.functions or environments.factory, "
            "or leave it out"
            for name in said
        ]
    names = [path.partition(":")[2] for path in tools.functions]
    problems = [
        f'tools.functions: two functions are called "{name}", and the model could not tell them apart; rename one'
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if tools.timeout_seconds >= stall_seconds:
        problems.append(
            f"tools.timeout_seconds = {tools.timeout_seconds:g}: a call may take as long as the run waits for anything "
            f"(stop.stall_seconds = {stall_seconds:g}), and would end it; lower the first or raise the second"
        )
    return problems


def _environment_problems(environments: EnvironmentsSection, stall_seconds: float) -> list[str]:
    if not environments.are_given:
        unused = EnvironmentsSection()
        said = {
            "timeout_seconds: says how long an environment may take": environments.timeout_seconds
            != unused.timeout_seconds,
            "settings: says what an environment is like": environments.settings != unused.settings,
        }
        return [
            f"environments.{what}, and there is none; set environments.factory, or leave it out"
            for what, is_said in said.items()
            if is_said
        ]
    problems: list[str] = []
    if environments.settings and environments.factory is None:
        problems.append(
            "environments.settings: are those of environments.factory, and there is none; give each of environments.factories "
            "its own, as a table of factory and settings"
        )
    if environments.factory is not None and environments.factories:
        problems.append(
            "environments.factory: is the only environment of a run, and environments.factories names "
            f"{', '.join(sorted(environments.factories))}; move it there, under a name that rows can pick, or leave it out"
        )
    if environments.timeout_seconds >= stall_seconds:
        problems.append(
            f"environments.timeout_seconds = {environments.timeout_seconds:g}: an environment may take as long as the run "
            f"waits for anything (stop.stall_seconds = {stall_seconds:g}), and would end it; lower the first or raise the second"
        )
    return problems


def _loop_problems(loop: RolloutLoopSection, sections: Mapping[str, Any], stall_seconds: float) -> list[str]:
    if loop.rollout_func is None:
        ignored = {
            "rollout_loop.settings: values for a class or a function of yours, and none is named; set rollout_loop.path or "
            "rollout_loop.rollout_func, or leave them out": bool(loop.settings) and loop.path is None,
            "rollout_loop.timeout_seconds: says how long a rollout_func may take, and there is none; set "
            "rollout_loop.rollout_func, or leave it out": loop.timeout_seconds != RolloutLoopSection().timeout_seconds,
        }
        return [problem for problem, is_there in ignored.items() if is_there]
    problems = [
        f"rollout_loop.rollout_func: {loop.rollout_func} makes the completions itself, and {name} would never be used; leave "
        "one of them out"
        for name, given in (
            ("tools.functions", bool(sections["tools"].functions)),
            ("environments", sections["environments"].are_given),
        )
        if given
    ]
    if loop.timeout_seconds >= stall_seconds:
        problems.append(
            f"rollout_loop.timeout_seconds = {loop.timeout_seconds:g}: a call may take as long as the run waits for anything "
            f"(stop.stall_seconds = {stall_seconds:g}), and would end it without its name; lower the first or raise the second"
        )
    return problems


def _ignored_exports(checkpoint: CheckpointSection) -> list[str]:
    """Settings of exports where none is made."""
    if checkpoint.save_steps is not None:
        return []
    said = {
        "save_total_limit": checkpoint.save_total_limit is not None,
        "save_only_model": checkpoint.save_only_model,
    }
    return [
        f"checkpoint.{name}: says how to export every so many steps, and nothing is; set checkpoint.save_steps, or leave "
        "it out"
        for name, ignored in said.items()
        if ignored
    ]
