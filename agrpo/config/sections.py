"""The tables of a run's file whose settings are fixed: what may be set, within which bounds, and what it means."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from agrpo.registry import part

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


@part
class RunSection:
    """What the run is called and where it lives."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Letters, digits, dots, dashes. The folder is `{dir}/{name}-{utc time}`."""
    dir: str = "./runs"
    """Folder or URL (`s3://…`) that holds runs."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Of sampling, of the learner and of the initial weights."""
    data_seed: Annotated[int, Field(ge=0)] | None = None
    """Of the prompt order. None: `seed`."""


@part
class ModelSection:
    """The policy that training starts from."""

    path: Annotated[str, Field(min_length=1)]
    """Folder written by `save_pretrained`, or a hub id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """In which weights are loaded, trained and published."""
    revision: str | None = None
    trust_remote_code: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Extra keywords of the chat template."""


@part
class SamplingSection:
    """The settings of `[engine]` that every engine shares."""

    num_generations: Annotated[int, Field(ge=2)] = 8
    """Rollouts per prompt. Two at least: an advantage compares the rollouts of a group."""
    temperature: Positive = 1.0
    """0 is refused: a policy that never varies has nothing to compare."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Share = 0.0
    max_completion_length: Annotated[int, Field(ge=1)] = 2048
    """Most tokens generated per request."""
    num_sampler_logprobs: Annotated[int, Field(ge=0)] = 0
    reproducible: bool = False
    """Each group is a batch of its own, so that a lockstep run repeats bit for bit. Slower."""
    request_timeout_seconds: Positive = 600.0
    """Of one request; it is asked once more with the same seed, then its rollout has failed."""


@part
class RewardSection:
    """One reward, in the order of the file."""

    name: str
    """A reward of agrpo, or `package.module:function`."""
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    timeout_seconds: Positive = 30.0
    """Of one call for a whole group."""
    memory_bytes: Annotated[int, Field(ge=64 * 2**20)] = 2 * 2**30
    """Most memory a call may take beyond what the reward's process holds."""
    on_error: Literal["record", "stop"] = "record"
    """What a call that fails does: leave that rollout without this reward, or stop the run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Knobs of a reward of agrpo."""


@part
class StepSection:
    """What one optimizer step is made of."""

    groups: Annotated[int, Field(ge=1)] = 8
    """Groups per step."""
    micro_tokens: Annotated[int, Field(ge=2)] = 16384
    """Most tokens forwarded at once; a step takes as many micro-batches as it needs."""
    zero_variance: Literal["keep", "drop", "refill"] | None = None
    """Groups whose rewards are equal: train them with advantage 0, leave the step shorter, or take others in their
    place. None: `keep` in lockstep, `refill` otherwise."""


@part
class AsyncSection:
    """How far generation may run ahead of training."""

    max_staleness: Annotated[int, Field(ge=0)] = 4
    """Most weight updates between sampling a group and training it. 0: lockstep."""
    weight_sync_steps: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps between two publishes of the weights."""
    max_concurrent_rollouts: Annotated[int, Field(ge=1)] = 512


@part
class OptimizerSection:
    """AdamW and one of transformers' learning-rate schedules."""

    name: Literal["adamw"] = "adamw"
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    betas: tuple[Share, Share] = (0.9, 0.999)
    epsilon: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    scheduler: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """As in transformers: the first warm-up step has rate 0. `constant` ignores none: use `constant_with_warmup`."""
    max_grad_norm: Positive = 1.0


@part
class CheckpointSection:
    """Checkpoints to recover from. The two newest are kept."""

    every_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Least time between two; 0 writes one after every step. One is always written at the end."""


@part
class StopSection:
    """When the run ends."""

    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps; rules alone where it is set."""
    epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over the prompts, counted in consumed prompts."""
    grace_seconds: Positive = 3.0
    """Between asking a stage's processes to end and killing them."""
    stall_seconds: Positive = 1800.0
    """Longest wait for anything of the run; then it fails and says what it waited for."""


@part
class RecorderSection:
    """What reaches the database, and when."""

    every_seconds: Positive = 2.0
    """Least pause between two looks; after a costly one up to 10 s, so that recording stays below 2 % of a core."""
    topk: bool = False
    """Also record the sampler's most likely tokens (most of the bytes, where they are asked for)."""


SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "model": ModelSection,
    "step": StepSection,
    "async": AsyncSection,
    "optimizer": OptimizerSection,
    "checkpoint": CheckpointSection,
    "stop": StopSection,
    "recorder": RecorderSection,
}
"""Tables whose settings are fixed."""
