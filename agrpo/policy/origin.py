"""What a policy in training is made of, in any process: its model, adapter, optimizer and reference, loaded from settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agrpo.config import AdapterSection, ModelSection, OptimizerSection
from agrpo.config.objective import DivergenceSection
from agrpo.policy.determinism import make_deterministic
from agrpo.policy.model import load_policy
from agrpo.policy.optimizer import build_optimizer
from agrpo.policy.reference import Reference, load_reference

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from agrpo.config import RunConfig
    from agrpo.policy.ranks.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """As one rank holds it."""

    model: PreTrainedModel
    optimizer: Optimizer
    reference: Reference | None
    """None: nothing is measured against one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Plain data, which travels to every rank."""

    model: ModelSection
    adapter: AdapterSection
    optimizer: OptimizerSection
    divergence: DivergenceSection = field(default_factory=DivergenceSection)
    seed: int
    micro_tokens: int | None = None
    """Most tokens of a row; None: it is not known."""
    threads: int | None = None
    """Of torch on a CPU, for all ranks together. None: as the process has them."""

    @classmethod
    def of(cls, config: RunConfig, threads: int | None = None) -> Origin:
        return cls(
            model=config.model,
            adapter=config.adapter,
            optimizer=config.optimizer,
            divergence=config.divergence,
            seed=config.run.seed,
            micro_tokens=config.step.micro_tokens,
            threads=threads,
        )

    def load(self, group: Group) -> Loaded:
        """The weights that training begins with, as this rank of the group holds them. All ranks must call it."""
        if self.threads is not None:
            make_deterministic(max(1, self.threads // group.size))
        device = str(group.device)
        model = load_policy(
            self.model, device, adapter=self.adapter, seed=self.seed, group=group, micro_tokens=self.micro_tokens
        )
        return Loaded(
            model=model,
            optimizer=build_optimizer(model, self.optimizer),
            reference=load_reference(model, self.divergence, self.model, group=group, micro_tokens=self.micro_tokens),
        )
