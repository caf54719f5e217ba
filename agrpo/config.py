"""One run's settings: a TOML file whose tables are the parts of the run, resolved in layers that keep their origin.

    defaults  <  file  <  --set key=value

`resolve` gives a `Settings` (plain values and where each came from); `RunConfig.build` checks them all, says everything
that is wrong at once, and builds the parts. Nothing here imports torch or touches a model, a dataset or a server.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pydantic
from pydantic import Field

from agrpo.errors import ConfigError, UnknownName
from agrpo.records.sampling import Sampling
from agrpo.registry import Registry, knobs_of, nearest, part, problems_of

if TYPE_CHECKING:
    from agrpo.advantages import Advantage
    from agrpo.aggregations import Aggregation
    from agrpo.engines import EnginePart
    from agrpo.losses import Loss
    from agrpo.packing import Packing
    from agrpo.prompts import Source

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

    path: str
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

ROOMS: dict[str, tuple[str, str | None]] = {
    "engine": ("agrpo.engines", "transformers"),
    "prompts": ("agrpo.prompts", None),
    "advantage": ("agrpo.advantages", "grpo"),
    "loss": ("agrpo.losses", "clip"),
    "aggregation": ("agrpo.aggregations", "token_mean"),
    "packing": ("agrpo.packing", "sequence"),
}
"""Tables that choose a part: the room, and the part where the file names none."""


@dataclass(frozen=True, kw_only=True)
class PromptsSection:
    """Where prompts come from and in which order."""

    source: Source
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Resolved values by table, and the origin of each that is no default."""

    tree: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run's settings, checked and built. `settings` are the plain values it was built from, defaults filled in."""

    run: RunSection
    model: ModelSection
    sampling: Sampling
    engine: EnginePart
    prompts: PromptsSection
    rewards: tuple[RewardSection, ...]
    advantage: Advantage
    loss: Loss
    aggregation: Aggregation
    packing: Packing
    step: StepSection
    asynchronous: AsyncSection
    optimizer: OptimizerSection
    checkpoint: CheckpointSection
    stop: StopSection
    recorder: RecorderSection
    settings: Settings

    @classmethod
    def build(cls, settings: Settings) -> RunConfig:
        """Check every setting and build the parts. Raises `ConfigError` holding all problems."""
        return _Builder(settings).build()

    @property
    def lockstep(self) -> bool:
        return self.asynchronous.max_staleness == 0

    @property
    def zero_variance(self) -> str:
        return self.step.zero_variance or ("keep" if self.lockstep else "refill")

    @property
    def data_seed(self) -> int:
        return self.run.seed if self.run.data_seed is None else self.run.data_seed

    @property
    def groups_per_version(self) -> int:
        return self.step.groups * self.asynchronous.weight_sync_steps


def resolve(file: Path | None = None, sets: Iterable[str] = (), values: Mapping[str, Any] | None = None) -> Settings:
    """Layer the settings. `sets`: `table.key=value` in TOML's notation; `values`: a tree under the file."""
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if values is not None:
        _lay(tree, origins, values, "built in")
    if file is not None:
        _lay(tree, origins, _read_toml(file), str(file))
    for setting in sets:
        path, value = _parse_set(setting)
        _lay(tree, origins, _nest(path, value), "--set")
    return Settings(tree=tree, origins=origins)


def load_settings(document: Mapping[str, Any]) -> Settings:
    """The settings that `run.json` keeps."""
    return Settings(tree=document["settings"]["tree"], origins=document["settings"]["origins"])


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give the path of a run's TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _parse_set(setting: str) -> tuple[list[str], Any]:
    path, equals, text = setting.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f'--set {setting}: expected "table.key=value", such as --set optimizer.learning_rate=1e-5')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return path.strip().split("."), value


def _nest(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value


def _lay(
    tree: dict[str, Any], origins: dict[str, str], layer: Mapping[str, Any], origin: str, prefix: str = ""
) -> None:
    for key, value in layer.items():
        where = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(tree.get(key, {}), dict):
            _lay(tree.setdefault(key, {}), origins, value, origin, f"{where}.")
        else:
            tree[key] = value
            origins[where] = origin


class _Builder:
    """Builds every part it can and collects what is wrong with the others."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tree = settings.tree
        self.problems: list[str] = []
        self.resolved: dict[str, Any] = {}

    def build(self) -> RunConfig:
        self._refuse_unknown_tables()
        sections = {name: self._section(name, cls, self.tree.get(name, {})) for name, cls in SECTIONS.items()}
        sampling = self._sampling()
        shuffle = self._shuffle()
        parts = {name: self._part(name) for name in ROOMS}
        rewards = self._rewards()
        if not self.problems:
            self.problems += _cross_checks(sections, sampling, rewards, parts["engine"])
        if self.problems:
            raise ConfigError([self._with_origin(problem) for problem in self.problems])
        self.resolved["rewards"] = [_values_of(reward) for reward in rewards]
        return RunConfig(
            run=sections["run"],
            model=sections["model"],
            sampling=sampling,
            prompts=PromptsSection(source=parts.pop("prompts"), shuffle=shuffle),
            rewards=tuple(rewards),
            step=sections["step"],
            asynchronous=sections["async"],
            optimizer=sections["optimizer"],
            checkpoint=sections["checkpoint"],
            stop=sections["stop"],
            recorder=sections["recorder"],
            settings=Settings(tree=self.resolved, origins=self.settings.origins),
            **parts,
        )

    def _with_origin(self, problem: str) -> str:
        origin = self.settings.origins.get(problem.partition(":")[0].partition(" = ")[0])
        return f"{problem} ({origin})" if origin else problem

    def _refuse_unknown_tables(self) -> None:
        known = [*SECTIONS, *ROOMS, "rewards"]
        self.problems += [f"{key}: unknown table; {nearest(key, known)}" for key in self.tree if key not in known]

    def _section(self, name: str, cls: type[Any], values: Any) -> Any:
        if not isinstance(values, Mapping):
            self.problems.append(f"{name} = {values!r}: expected a table [{name}]")
            return None
        try:
            built = cls(**values)
        except pydantic.ValidationError as error:
            self.problems += problems_of(error, knobs_of(cls), f"{name}.")
            return None
        self.resolved.setdefault(name, {}).update(_values_of(built))
        return built

    def _sampling(self) -> Sampling:
        values = self._table("engine")
        shared = {key: values[key] for key in values if key in knobs_of(SamplingSection)}
        built = self._section("engine", SamplingSection, shared)
        return Sampling(**_values_of(built)) if built else Sampling()

    def _shuffle(self) -> bool:
        shuffle = self._table("prompts").get("shuffle", True)
        if not isinstance(shuffle, bool):
            self.problems.append(f"prompts.shuffle = {shuffle!r}: expected true or false")
            return True
        self.resolved.setdefault("prompts", {})["shuffle"] = shuffle
        return shuffle

    def _table(self, name: str) -> Mapping[str, Any]:
        values = self.tree.get(name, {})
        return cast("Mapping[str, Any]", values) if isinstance(values, Mapping) else {}

    def _part(self, table: str) -> Any:
        room, default = ROOMS[table]
        if not isinstance(self.tree.get(table, {}), Mapping):
            self.problems.append(f"{table} = {self.tree[table]!r}: expected a table [{table}]")
            return None
        shared = {"engine": knobs_of(SamplingSection), "prompts": ["shuffle"]}.get(table, [])
        values = {key: value for key, value in self._table(table).items() if key not in shared}
        name = values.pop("name", default)
        registry: Registry[Any] = Registry(room)
        if not isinstance(name, str):
            self.problems.append(f"{table}.name: missing; choose one of {', '.join(registry.names())}")
            return None
        try:
            cls = registry[name]
            built = cls(**values)
        except UnknownName as error:
            self.problems.append(f"{table}.name: {error}")
            return None
        except pydantic.ValidationError as error:
            self.problems += problems_of(error, [*knobs_of(cls), *shared, "name"], f"{table}.")
            return None
        self.resolved.setdefault(table, {}).update({"name": name, **_values_of(built)})
        return built

    def _rewards(self) -> list[RewardSection]:
        entries = self.tree.get("rewards", [])
        if not isinstance(entries, list) or not entries:
            self.problems.append("rewards: missing; a run needs at least one [[rewards]] table")
            return []
        built = [self._reward(f"rewards.{index}", entry) for index, entry in enumerate(entries)]
        return [reward for reward in built if reward is not None]

    def _reward(self, where: str, entry: Any) -> RewardSection | None:
        if not isinstance(entry, Mapping):
            self.problems.append(f"{where} = {entry!r}: expected a table [[rewards]]")
            return None
        own = knobs_of(RewardSection)
        values = {key: value for key, value in entry.items() if key in own}
        knobs = {**values.pop("settings", {}), **{key: value for key, value in entry.items() if key not in own}}
        name = entry.get("name")
        try:
            if isinstance(name, str) and ":" not in name:
                cls = Registry("agrpo.rewards")[name]
                try:
                    cls(**knobs)
                except pydantic.ValidationError as error:
                    self.problems += problems_of(error, [*knobs_of(cls), *own], f"{where}.")
                    return None
            elif knobs:
                unknown = next(iter(knobs))
                self.problems.append(f"{where}.{unknown}: unknown setting; {nearest(unknown, own)}")
                return None
            return RewardSection(**values, settings=knobs)
        except UnknownName as error:
            self.problems.append(f'{where}.name: {error}, or "package.module:function" for one of yours')
        except pydantic.ValidationError as error:
            self.problems += problems_of(error, own, f"{where}.")
        return None


def _values_of(built: Any) -> dict[str, Any]:
    """A part's settings as plain values that TOML and JSON can hold, so that they build the same part again."""
    return {f.name: _plain(getattr(built, f.name)) for f in fields(built)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | frozenset | set):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return str(value) if isinstance(value, Path) else value


def _cross_checks(
    sections: Mapping[str, Any], sampling: Sampling, rewards: list[RewardSection], engine: EnginePart
) -> list[str]:
    """What no setting can see alone."""
    problems: list[str] = []
    stop, optimizer, asynchronous = sections["stop"], sections["optimizer"], sections["async"]
    if sampling.top_p < 1.0 and sampling.top_k == 0:
        problems.append(
            "engine.top_p: below 1 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if sampling.min_p > 0.0 and sampling.top_k == 0:
        problems.append(
            "engine.min_p: above 0 needs engine.top_k above 0, which bounds the candidate set; try top_k = 512"
        )
    if stop.max_steps is None and stop.epochs is None:
        problems.append("stop: says no end; set stop.max_steps or stop.epochs")
    refills = (sections["step"].zero_variance or ("keep" if asynchronous.max_staleness == 0 else "refill")) == "refill"
    if optimizer.scheduler in ("linear", "cosine") and stop.max_steps is None and refills:
        problems.append(
            f'optimizer.scheduler: "{optimizer.scheduler}" decays to the last step, whose number is unknown when '
            "groups are refilled; set stop.max_steps, or step.zero_variance to keep or drop"
        )
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
    names = [reward.name for reward in rewards]
    problems += [
        f'rewards: "{name}" is listed twice; its values could not be told apart'
        for name in {*names}
        if names.count(name) > 1
    ]
    return problems


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """A section's default values, by name; settings without one are left out."""
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}
