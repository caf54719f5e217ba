"""The settings of one run, checked and built into its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pydantic

from agrpo.config.checks import cross_checks
from agrpo.config.group_checks import group_checks
from agrpo.config.layers import Settings
from agrpo.config.objective import CorrectionSection, DivergenceSection, EntropySection, MasksSection
from agrpo.config.sections import (
    SECTIONS,
    AdapterSection,
    AsyncSection,
    CheckpointSection,
    EnvironmentsSection,
    FactorySection,
    FilterSection,
    ModelSection,
    OptimizerSection,
    RecorderSection,
    ResumeSection,
    RewardSection,
    RolloutLoopSection,
    RunSection,
    SamplingSection,
    StepSection,
    StopSection,
    StoreSection,
    SupervisionSection,
    ToolsSection,
    WorkersSection,
)
from agrpo.config.zero_variance import zero_variance_of
from agrpo.errors import ConfigError, UnknownName
from agrpo.records.sampling import Sampling
from agrpo.registry import Registry, knobs_of, nearest, problems_of

if TYPE_CHECKING:
    from agrpo.advantages import Advantage
    from agrpo.aggregations import Aggregation
    from agrpo.engines import EnginePart
    from agrpo.losses import Loss
    from agrpo.packing import Packing
    from agrpo.prompts import Source

ROOMS: dict[str, tuple[str, str | None]] = {
    "engine": ("agrpo.engines", "transformers"),
    "prompts": ("agrpo.prompts", None),
    "advantage": ("agrpo.advantages", "grpo"),
    "loss": ("agrpo.losses", "score_centering"),
    "aggregation": ("agrpo.aggregations", "token_mean"),
    "packing": ("agrpo.packing", "tree"),
}
"""Tables that choose a part: the room, and the part where the file names none."""


_Listed = TypeVar("_Listed", RewardSection, FilterSection)


@dataclass(frozen=True, kw_only=True)
class PromptsSection:
    """Where prompts come from and in which order."""

    source: Source
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run's settings, checked and built. `settings` are the plain values it was built from, defaults filled in."""

    run: RunSection
    model: ModelSection
    adapter: AdapterSection
    sampling: Sampling
    engine: EnginePart
    prompts: PromptsSection
    tools: ToolsSection
    environments: EnvironmentsSection
    rollout_loop: RolloutLoopSection
    rewards: tuple[RewardSection, ...]
    filters: tuple[FilterSection, ...]
    advantage: Advantage
    loss: Loss
    aggregation: Aggregation
    packing: Packing
    correction: CorrectionSection
    masks: MasksSection
    divergence: DivergenceSection
    entropy: EntropySection
    step: StepSection
    asynchronous: AsyncSection
    optimizer: OptimizerSection
    checkpoint: CheckpointSection
    resume: ResumeSection
    workers: WorkersSection
    stop: StopSection
    recorder: RecorderSection
    supervision: SupervisionSection
    store: StoreSection
    settings: Settings

    @classmethod
    def build(cls, settings: Settings) -> RunConfig:
        """Check every setting and build the parts. Raises `ConfigError` holding all problems."""
        return _Builder(settings).build()

    @property
    def lockstep(self) -> bool:
        return self.asynchronous.max_staleness == 0

    @property
    def served_adapter_rank(self) -> int | None:
        """Of the adapter that reaches the engine by itself; None: whole weights do."""
        return self.adapter.rank if self.adapter.publish == "adapter" else None

    @property
    def zero_variance(self) -> str:
        return zero_variance_of(self.settings.tree)

    def num_steps(self, prompts_per_epoch: int | None) -> int | None:
        """Optimizer steps of the whole run; None where they cannot be counted.

        A rollout loop may leave prompts out, and filters groups, which take no place in a step then.
        """
        if self.stop.max_steps is not None or self.stop.epochs is None:
            return self.stop.max_steps
        leaves_out = self.rollout_loop.path is not None or self.filters
        if self.zero_variance == "refill" or leaves_out or prompts_per_epoch is None:
            return None
        return -(-self.stop.epochs * prompts_per_epoch // self.step.groups)

    @property
    def data_seed(self) -> int:
        return self.run.seed if self.run.data_seed is None else self.run.data_seed

    @property
    def groups_per_version(self) -> int:
        return self.step.groups * self.asynchronous.weight_sync_steps


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
        asked = self._asked_sampling()
        shuffle = self._shuffle()
        parts = {name: self._part(name) for name in ROOMS}
        rewards, filters = self._rewards(), self._filters()
        sampling = self._sampling(asked, parts["loss"])
        if not self.problems:
            self.problems += cross_checks(
                sections, sampling, rewards, parts["engine"], loss=parts["loss"], aggregation=parts["aggregation"]
            )
            self.problems += group_checks(
                self.tree, sections, sampling, rewards=rewards, filters=filters, advantage=parts["advantage"]
            )
        if self.problems:
            raise ConfigError([self._with_origin(problem) for problem in self.problems])
        self.resolved["rewards"] = [_values_of(reward) for reward in rewards]
        if filters:
            self.resolved["filters"] = [_values_of(one) for one in filters]
        return RunConfig(
            run=sections["run"],
            model=sections["model"],
            adapter=sections["adapter"],
            sampling=sampling,
            prompts=PromptsSection(source=parts.pop("prompts"), shuffle=shuffle),
            tools=sections["tools"],
            environments=sections["environments"],
            rollout_loop=sections["rollout_loop"],
            rewards=tuple(rewards),
            filters=tuple(filters),
            correction=sections["correction"],
            masks=sections["masks"],
            divergence=sections["divergence"],
            entropy=sections["entropy"],
            step=sections["step"],
            asynchronous=sections["async"],
            optimizer=sections["optimizer"],
            checkpoint=sections["checkpoint"],
            resume=sections["resume"],
            workers=sections["workers"],
            stop=sections["stop"],
            recorder=sections["recorder"],
            store=sections["store"],
            supervision=sections["supervision"],
            settings=Settings(tree=self.resolved, origins=self.settings.origins),
            **parts,
        )

    def _with_origin(self, problem: str) -> str:
        where = problem.partition(":")[0].partition(" = ")[0]
        inside = (origin for key, origin in self.settings.origins.items() if key.startswith(f"{where}."))
        origin = self.settings.origins.get(where) or next(inside, None)
        return f"{problem} ({origin})" if origin else problem

    def _refuse_unknown_tables(self) -> None:
        known = [*SECTIONS, *ROOMS, "rewards", "filters"]
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

    def _asked_sampling(self) -> SamplingSection | None:
        values = self._table("engine")
        shared = {key: values[key] for key in values if key in knobs_of(SamplingSection)}
        return self._section("engine", SamplingSection, shared)

    def _sampling(self, asked: SamplingSection | None, loss: Loss | None) -> Sampling:
        """As asked, with as many top log-probs as the loss reads where none were said."""
        if asked is None or loss is None:
            return Sampling()
        num_top = loss.num_top if asked.num_sampler_logprobs is None else asked.num_sampler_logprobs
        self.resolved["engine"]["num_sampler_logprobs"] = num_top
        values: dict[str, Any] = {**_values_of(asked), "num_sampler_logprobs": num_top}
        return Sampling(**values)

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
        except UnknownName as error:
            self.problems.append(f"{table}.name: {error}")
            return None
        try:
            built = cls(**values)
        except pydantic.ValidationError as error:
            self.problems += problems_of(error, [*knobs_of(cls), *shared, "name"], f"{table}.")
            return None
        self.resolved.setdefault(table, {}).update({"name": name, **_values_of(built)})
        return built

    def _rewards(self) -> list[RewardSection]:
        entries = self.tree.get("rewards", [])
        acts = bool(self._table("environments"))  # an environment may bring the reward
        if not isinstance(entries, list) or not (entries or acts):
            self.problems.append("rewards: missing; a run needs at least one [[rewards]] table")
            return []
        return self._listed("rewards", entries, RewardSection)

    def _filters(self) -> list[FilterSection]:
        entries = self.tree.get("filters", [])
        if not isinstance(entries, list):
            self.problems.append(f"filters = {entries!r}: expected tables [[filters]]")
            return []
        return self._listed("filters", entries, FilterSection)

    def _listed(self, table: str, entries: list[Any], section: type[_Listed]) -> list[_Listed]:
        """Entries that each choose a part of the table's room, or something of the user's by its path."""
        built = [self._entry(table, f"{table}.{index}", entry, section) for index, entry in enumerate(entries)]
        return [one for one in built if one is not None]

    def _entry(self, table: str, where: str, entry: Any, section: type[_Listed]) -> _Listed | None:
        if not isinstance(entry, Mapping):
            self.problems.append(f"{where} = {entry!r}: expected a table [[{table}]]")
            return None
        own = knobs_of(section)
        values = {key: value for key, value in entry.items() if key in own}
        knobs = {**values.pop("settings", {}), **{key: value for key, value in entry.items() if key not in own}}
        name = entry.get("name")
        try:
            if isinstance(name, str) and ":" not in name:
                cls = Registry(f"agrpo.{table}")[name]
                try:
                    cls(**knobs)
                except pydantic.ValidationError as error:
                    self.problems += problems_of(error, [*knobs_of(cls), *own], f"{where}.")
                    return None
            elif knobs and section is RewardSection:
                unknown = next(iter(knobs))
                self.problems.append(f"{where}.{unknown}: unknown setting; {nearest(unknown, own)}")
                return None
            return section(**values, settings=knobs)
        except UnknownName as error:
            kind = "function" if section is RewardSection else "Class"
            self.problems.append(f'{where}.name: {error} Or name one of yours as "package.module:{kind}"')
        except pydantic.ValidationError as error:
            self.problems += problems_of(error, own, f"{where}.")
        return None


def _values_of(built: Any) -> dict[str, Any]:
    """A part's settings as plain values that TOML and JSON can hold, so that they build the same part again."""
    return {f.name: _plain(getattr(built, f.name)) for f in fields(built)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | frozenset | set):
        return [_plain(item) for item in value]
    if isinstance(value, FactorySection):
        return _values_of(value) if value.settings else value.factory
    if isinstance(value, dict) and any(isinstance(each, FactorySection) for each in value.values()):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return str(value) if isinstance(value, Path) else value
