"""The terms of a run: what its settings and its identity decide of every record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.audit.scores import MarkRules
from agrpo.config import AsyncSection, FilterSection, RolloutLoopSection, RunSection, StepSection, load_settings
from agrpo.config.zero_variance import zero_variance_of
from agrpo.errors import AgrpoError, ConfigError, HookError, UnknownName
from agrpo.filters import load_filters
from agrpo.records.manifest import RunIdentity
from agrpo.registry import Registry
from agrpo.rollout_loop.finding import loop_class, overrides

if TYPE_CHECKING:
    from agrpo.advantages import Advantage
    from agrpo.filters import Filter


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Read from `run.json`."""

    run: RunSection
    step: StepSection
    asynchronous: AsyncSection
    shuffle: bool
    prompts_per_epoch: int | None
    identity: RunIdentity | None
    """None where `run.json` does not say it."""
    config_digest: str | None
    zero_variance: str
    """What becomes of groups with equal rewards."""
    filters: Mapping[str, Filter] | None
    """None where one cannot be loaded here."""
    advantage: Advantage | None
    """None where the part cannot be loaded here, or the run's rollout loop computes advantages itself."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Terms:
        tree = load_settings(document).tree
        said = {name: document[name] for name in ("name", "created_at", "config_digest") if name in document}
        return cls(
            run=RunSection(**tree.get("run", {})),
            step=StepSection(**tree.get("step", {})),
            asynchronous=AsyncSection(**tree.get("async", {})),
            shuffle=tree.get("prompts", {}).get("shuffle", True),
            prompts_per_epoch=document.get("prompts_per_epoch"),
            identity=RunIdentity(**said) if len(said) == 3 else None,
            config_digest=document.get("config_digest"),
            zero_variance=zero_variance_of(tree),
            filters=_filters(tree.get("filters", [])),
            advantage=None if _has_own(tree.get("rollout_loop", {})) else _advantage(tree.get("advantage", {})),
        )

    @property
    def mark_rules(self) -> MarkRules:
        return MarkRules(
            micro_tokens=self.step.micro_tokens,
            min_group=2 if self.advantage is None else self.advantage.min_group,
            zero_variance_reward=self.step.zero_variance_reward,
            filters=self.filters,
        )

    @property
    def max_staleness(self) -> int:
        return self.asynchronous.max_staleness

    @property
    def sync_steps(self) -> int:
        return self.asynchronous.weight_sync_steps

    @property
    def data_seed(self) -> int:
        return self.run.seed if self.run.data_seed is None else self.run.data_seed

    def ordinal_before(self, step: int) -> int:
        """Publishes due before a step."""
        return (step - 1) // self.sync_steps


def _has_own(table: dict[str, Any]) -> bool:
    """Whether advantages are the loop's own, as far as can be told here."""
    try:
        return overrides(loop_class(RolloutLoopSection(**table)), "compute_advantages")
    except HookError:
        return True


def _filters(tables: list[dict[str, Any]]) -> dict[str, Filter] | None:
    try:
        return load_filters([FilterSection(**table) for table in tables])
    except (AgrpoError, ImportError):
        return None


def _advantage(table: dict[str, Any]) -> Advantage | None:
    settings = dict(table)
    parts: Registry[Advantage] = Registry("agrpo.advantages")
    try:
        return parts.build(settings.pop("name", "grpo"), settings)
    except (ConfigError, UnknownName, ImportError):
        return None
