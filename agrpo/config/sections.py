"""The tables of a run's file whose settings are fixed: what may be set, within which bounds, and what it means."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
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
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """In which weights and the optimizer's state are held. `auto`: the checkpoint's, settled when the run begins."""
    mixed_precision: Literal["bfloat16", "float16", "float32"] | None = None
    """In which the arithmetic is done and weights are published, where they are held in float32. `float32`: in no other type.
    None, settled when the run begins: `bfloat16` where the learner trains on a GPU, unless `engine.reproducible` is on; else
    all is in `dtype`."""
    activation_checkpointing: bool | None = None
    """Keep the inputs of layers alone and compute the rest again in backward: less memory, a third more time. None: on a
    GPU."""
    router_aux_loss_coef: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Weight of the loss that balances the experts of a mixture. None: what the model's configuration says. 0: off."""
    revision: str | None = None
    """Branch, tag or commit of a hub id. None: the newest of the default branch."""
    trust_remote_code: bool = False
    """Run the Python code that the model's repository brings with it."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Extra keywords of the chat template."""
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    """A template for training ([templates.md](templates.md)), such as `qwen3_training`, or a file with one; exports carry it.
    None: the tokenizer's own."""

    @property
    def served_dtype(self) -> str:
        """In which weights are published and served."""
        return self.mixed_precision or self.dtype

    @property
    def compute_dtype(self) -> str | None:
        """In which the arithmetic is done, where that is another type than weights are held in."""
        return None if self.mixed_precision == self.dtype else self.mixed_precision


@part
class AdapterSection:
    """LoRA: train small matrices beside the model's weights, which stay as they are. Without a rank all weights train."""

    rank: Annotated[int, Field(ge=1)] | None = None
    """Of every matrix. None: there is no adapter."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 32.0
    """What the adapter adds is multiplied by `alpha / rank`."""
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Layers that get one, each by its name or the end of it, such as `q_proj`; or every linear layer but the output head."""
    dora: bool = False
    """Train the length of every output's row apart (DoRA)."""
    publish: Literal["auto", "merged", "adapter"] = "auto"
    """In which form new weights reach the engine: whole weights that the adapter is merged into, or the adapter alone. `auto`
    is settled when the run begins."""


@part
class SamplingSection:
    """The settings of `[engine]` that every engine shares."""

    num_generations: Annotated[int, Field(ge=1)] = 8
    """Rollouts per prompt: as many as the run's advantage compares, which is two at least for those of agrpo."""
    temperature: Positive = 1.0
    """0 is refused: a policy that never varies has nothing to compare."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest tokens whose probabilities reach this sum. 1: from all. Below 1 it needs `top_k`."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample from so many of the likeliest tokens. 0: from all."""
    min_p: Share = 0.0
    """Leave out tokens less probable than this share of the likeliest one. 0: none. Above 0 it needs `top_k`."""
    max_completion_length: Annotated[int, Field(ge=1)] = 2048
    """Most tokens generated per request."""
    num_sampler_logprobs: Annotated[int, Field(ge=0)] | None = None
    """Most likely tokens whose log-probs are kept per generated token. None: as many as the loss reads."""
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
    """By which it is multiplied in the sum of a rollout's rewards."""
    timeout_seconds: Positive = 30.0
    """Of one call for a whole group."""
    memory_bytes: Annotated[int, Field(ge=64 * 2**20)] = 2 * 2**30
    """Most memory a call may take beyond what the reward's process holds."""
    on_error: Literal["record", "stop"] = "record"
    """What a call that fails does: leave that rollout without this reward, or stop the run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Knobs of a reward of agrpo."""


@part
class FilterSection:
    """One filter of scored groups, in the order of the file."""

    name: str
    """A filter of agrpo, or a class of yours as `package.module:Class`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Its knobs, which may also stand beside its name."""


@part
class ToolsSection:
    """Functions that the policy may call in the middle of a rollout. Without any, a rollout is one turn."""

    functions: list[Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]] = field(default_factory=list)
    """Each as `package.module:function`. They run in the generator's process."""
    max_tool_calling_iterations: Annotated[int, Field(ge=1)] | None = None
    """Turns of a rollout whose calls are run; one that calls again after as many ends there. None: as its length allows."""
    max_calls_per_turn: Annotated[int, Field(ge=1)] = 16
    """Calls of one turn that are run, one after the other; those beyond are refused, and the model is told so."""
    timeout_seconds: Positive = 30.0
    """Of one call. One that takes longer has failed."""
    max_result_characters: Annotated[int, Field(ge=1)] = 8192
    """Of a result that the model sees; what is beyond is cut, and the model is told so."""
    call_format: Literal["tagged", "llama", "deepseek", "gemma", "mistral"] | None = None
    """How the model writes its calls. None: as its tokenizer declares, or as its chat template shows."""


_PATH = Field(pattern=r"^([A-Za-z_][\w.]*:)?[A-Za-z_][\w-]*$")
"""`package.module:name`, or the name of an entry point."""


@part
class FactorySection:
    """What makes the instances of one environment."""

    factory: Annotated[str, _PATH]
    """As `package.module:Class` or as an entry point's name."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Given to it by name."""


def _factory_entry(given: Any) -> Any:
    """A factory without settings may be named alone."""
    return {"factory": given} if isinstance(given, str) else given


@part
class EnvironmentsSection:
    """Worlds in which rollouts act ([environments.md](environments.md)). Without any, a rollout has functions alone, or nothing."""

    factory: Annotated[str, _PATH] | None = None
    """What makes an instance of the run's only environment, as `package.module:Class`, or by its name: `openenv`, or an entry
    point's."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values that the factory is given by name, such as a `url`."""
    factories: dict[str, Annotated[FactorySection, BeforeValidator(_factory_entry)]] = field(default_factory=dict)
    """Several, by the name with which a row's `environment` column picks one; each is a factory, or a table of `factory` and
    `settings`."""
    timeout_seconds: Positive = 30.0
    """Of making an instance, of its `reset` and of its `get_reward`. A rollout whose environment takes longer has failed."""

    @property
    def are_given(self) -> bool:
        """Whether rollouts act in an environment."""
        return self.factory is not None or bool(self.factories)


@part
class RolloutLoopSection:
    """Code of yours that makes rollouts: a class with hooks ([hooks.md](hooks.md)), a function ([rollout_func.md](rollout_func.md))."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """A subclass of `agrpo.AsyncRolloutLoop`, as `package.module:Class`. None: agrpo's own."""
    rollout_func: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """What is given a group's prompt and returns its completions, as `package.module:function`. None: the engine is asked."""
    timeout_seconds: Positive = 1200.0
    """Of one call of `rollout_func`, what it asks the engine included. One that takes longer ends the run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of yours: the class reads them as `self.settings`, the function as `trainer.settings`."""


@part
class StepSection:
    """What one optimizer step is made of."""

    groups: Annotated[int, Field(ge=1)] = 8
    """Groups per step."""
    micro_tokens: Annotated[int, Field(ge=2)] = 16384
    """Most tokens forwarded at once; a step takes as many micro-batches as it needs."""
    zero_variance: Literal["keep", "drop", "refill"] | None = None
    """Groups whose rewards are equal: train them with advantage 0, leave the step shorter, or take others in their
    place. None: `keep` in lockstep and where a divergence or entropy has a coefficient, `refill` otherwise."""
    zero_variance_reward: Annotated[str, Field(min_length=1)] | None = None
    """Name of the reward that has to differ in a group, whatever its other rewards do, so that a length penalty keeps no
    group whose answers are all right. None: the weighted sum."""
    mask_truncated: bool = False
    """Leave rollouts that were cut for their length out of the loss and its counts; their rewards still count in the group."""


@part
class AsyncSection:
    """How far generation may run ahead of training."""

    max_staleness: Annotated[int, Field(ge=0)] = 4
    """Most weight updates between sampling a group and training it. 0: lockstep."""
    weight_sync_steps: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps between two publishes of the weights."""
    max_concurrent_rollouts: Annotated[int, Field(ge=1)] = 512
    """Most rollouts in flight to the engine, whatever its servers bear."""
    scoring_queue: Annotated[int, Field(ge=1)] = 16
    """Most groups of one generator that wait for scores; where there are as many, it begins none."""


@part
class OptimizerSection:
    """AdamW and one of transformers' learning-rate schedules."""

    name: Literal["adamw"] = "adamw"
    """The only one."""
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    """After the warm-up, before any decay."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square, per step."""
    epsilon: Positive = 1e-8
    """Added to the root of the mean square."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Share of a weight, times the learning rate, that a step takes off it."""
    scheduler: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    """Course of the learning rate. `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """As in transformers: the first warm-up step has rate 0. `constant` ignores none: use `constant_with_warmup`."""
    max_grad_norm: Positive = 1.0
    """Longest gradient of a step, over all weights; a longer one is scaled down to it."""


@part
class CheckpointSection:
    """Checkpoints to recover from, of which the two newest are kept, and exports for users."""

    every_seconds: Annotated[float, Field(ge=0)] = 600.0
    """Least time between two to recover from; 0 writes one after every step. One is always written at the end."""
    save_steps: Annotated[int, Field(ge=1)] | None = None
    """Steps between two exports: `exports/step-{k}` of the run's folder, as `from_pretrained` loads it. None: none but
    the model at the end."""
    save_total_limit: Annotated[int, Field(ge=1)] | None = None
    """Newest exports that are kept. None: all."""
    save_only_model: bool = False
    """Export model and tokenizer alone, without the optimizer's state that further training may begin with."""


@part
class ResumeSection:
    """What a resumed run holds on to."""

    on_difference: Literal["stop", "continue"] | None = None
    """A replayed step gives other weights than were recorded (another kind of machine): `stop`, or `continue` from the
    step before with weights of its own and the same groups. None: `stop` on a CPU, which repeats itself, `continue` on a GPU."""

    def stops(self, device: str) -> bool:
        """Whether a replay on this kind of device (`cpu`, `cuda`, …) may not differ."""
        return self.on_difference == "stop" or (self.on_difference is None and device == "cpu")


@part
class WorkersSection:
    """How many processes of a kind work side by side. A ticket is done by one of them, whichever is first."""

    generators: Annotated[int, Field(ge=1, le=16)] = 1
    """Each holds the model."""
    scorers: Annotated[int, Field(ge=1, le=16)] = 1
    """Each holds every reward. A neighbour's groups are scored where it is gone."""
    learner_processes: Annotated[int, Field(ge=1)] | None = None
    """Processes that share the learner's weights, gradients and optimizer out among them (FSDP2), each with rows of its own.
    1 shards nothing. None: one for each GPU that no server of the run takes; 1 without a GPU, or beside servers of
    `engine.base_urls` on this machine."""
    learner_threads: Annotated[int, Field(ge=1)] | None = None
    """Of torch, in the learner, where it has no GPU. None: half of the cores, as in the other stages. A replay that shall be
    bit for bit needs as many."""
    lease_seconds: Positive = 600.0
    """How long a generator may be silent before another one generates what it had claimed. A generator that is started
    again takes its own claims over at once."""


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


@part
class SupervisionSection:
    """What becomes of a stage that dies or stands still."""

    restarts: Annotated[int, Field(ge=0)] = 3
    """How often a stage is started again; at the next death the run stops. Each stage is counted by itself."""
    steady_seconds: Positive = 600.0
    """A stage that has worked for so long since its last start has its earlier deaths forgotten. Waiting is no work."""
    first_pause_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Before the first restart; every further pause is twice as long."""
    longest_pause_seconds: Positive = 60.0
    """Beyond which pauses grow no further."""
    stall_seconds: Positive | None = None
    """A stage that says nothing for so long is ended and started again. None: half of `stop.stall_seconds`, so that this
    comes before another stage gives up waiting for it."""


@part
class StoreSection:
    """How much room a run may take. One that has no more stops, whole, and can be resumed once there is some."""

    max_bytes: Annotated[int, Field(ge=1)] | None = None
    """Most bytes of the run's folder, its database included. None: all that the disk has. Not counted in object stores."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 * 2**20
    """Least that is left free on the disk of the run's folder, or of its database where the folder is in an object store."""


SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "model": ModelSection,
    "adapter": AdapterSection,
    "tools": ToolsSection,
    "environments": EnvironmentsSection,
    "rollout_loop": RolloutLoopSection,
    "step": StepSection,
    "async": AsyncSection,
    "correction": CorrectionSection,
    "masks": MasksSection,
    "divergence": DivergenceSection,
    "entropy": EntropySection,
    "optimizer": OptimizerSection,
    "checkpoint": CheckpointSection,
    "resume": ResumeSection,
    "workers": WorkersSection,
    "stop": StopSection,
    "recorder": RecorderSection,
    "supervision": SupervisionSection,
    "store": StoreSection,
}
"""Tables whose settings are fixed."""
