"""The policy in training: its weights and its optimizer, in one process or shared out over several.

What all ranks must do together is a *deed*: rank 0 announces it, and every rank calls it with the trainee it holds. Rank 0
alone decides, so the deeds are few: begin, update, probe, let the reference follow, and one whole tensor out of the shards or
into them.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from agrpo.policy.determinism import seed_draws
from agrpo.policy.flops import Arithmetic, arithmetic_of
from agrpo.policy.origin import Origin
from agrpo.policy.peak import peak_flops_per_second
from agrpo.policy.precision import computed_in
from agrpo.policy.probe import make_probe
from agrpo.policy.ranks.group import Group
from agrpo.policy.ranks.recruits import Recruits, named, set_aside
from agrpo.policy.ranks.sharding import take_share, whole
from agrpo.policy.reference import Copy, Reference, SyncReference, copy_of
from agrpo.policy.update import NotFinite, UpdateOutcome, update
from agrpo.records.batch import Row
from agrpo.records.progress import Probe
from agrpo.records.tokens import StepTotals
from agrpo.tensors import trained_tensors
from agrpo.tensors.file import fill_from, save_tensors
from agrpo.tensors.moments import moments_of, renew_moments, reset_moments, step_counts
from agrpo.tensors.whole import share_out

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from agrpo.objective import Objective
    from agrpo.tensors.whole import Tensors

logger = logging.getLogger(__name__)


class Trainee:
    """One rank's hold of the policy in training. All but rank 0's `follow`."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: Optimizer,
        *,
        reference: Reference | None = None,
        origin: Origin | None = None,
        group: Group | None = None,
        recruits: Recruits | None = None,
        scratch: Callable[[], Path] | None = None,
    ) -> None:
        """`reference`: what penalties measure against. `origin`: what it was made of.

        `recruits`: None for a process alone, and for another rank than the first.

        `scratch`: a new folder for weights on their way to other processes; None: one of the system's temporary ones.
        """
        self.model = model
        self.optimizer = optimizer
        self.reference = reference
        self.group = group or Group(model.device)
        self.num_tokens = 0
        """Tokens forwarded since the start of the run."""
        self.num_prompts = 0
        """Prompts consumed since the start of the run."""
        self.peak_flops_per_second: float | None = None
        """Most that all training devices together can do. None: unknown, or not asked for."""
        self.origin = origin
        self._recruits = recruits
        self._scratch = scratch
        self._lock = threading.RLock()
        """One deed at a time: weights are pushed from a thread of their own."""
        self._share_out()

    @classmethod
    def of(
        cls,
        origin: Origin,
        group: Group,
        recruits: Recruits | None = None,
        *,
        scratch: Callable[[], Path] | None = None,
    ) -> Trainee:
        """Loaded here. All ranks must call it."""
        loaded = origin.load(group)
        return cls(
            loaded.model,
            loaded.optimizer,
            reference=loaded.reference,
            origin=origin,
            group=group,
            recruits=recruits,
            scratch=scratch,
        )

    @cached_property
    def arithmetic(self) -> Arithmetic | None:
        """Of the model's passes over a row. None: its family is not known."""
        return arithmetic_of(self.model)

    @property
    def device(self) -> str:
        """Kind of device that the weights are on, such as `cpu`."""
        return self.model.device.type

    def find_peak(self) -> None:
        """Look up or measure what the training devices can do, where a model's arithmetic can be held against it."""
        if self.arithmetic is not None:
            peak = peak_flops_per_second(self.model.device, computed_in(self.model))
            self.peak_flops_per_second = None if peak is None else peak * self.group.size

    def update(self, rows: Sequence[Row], step: UpdateSettings, on_row: Callable[[], None]) -> UpdateOutcome:
        """One optimizer step, with the rows dealt out to the ranks: see `policy.update.update`. `on_row` is rank 0's."""
        return self._together(Update(step), (rows, on_row))

    def probe(self, seed: int) -> Probe:
        """See `policy.probe.make_probe`."""
        return self._together(MakeProbe(seed))

    @property
    def reference_state(self) -> Tensors | None:
        """Weights of a reference that follows the policy: state, as the policy's own are. None: there is none."""
        return None if self.reference is None else self.reference.state

    def sync_reference(self, mixup: float) -> None:
        """Let the reference become `mixup x policy + (1 - mixup) x reference`."""
        self._together(SyncReference(mixup))

    def begin_again(self) -> None:
        """Take the weights that training began with, and an optimizer that has seen nothing."""
        assert self.origin is not None, "nobody knows what this trainee was made of"
        with self._lock, named(self.group, self._recruits):
            self.group.announce(Begin(self.origin))
            self.let_go()
            loaded = self.origin.load(self.group)
            self.model, self.optimizer, self.reference = loaded.model, loaded.optimizer, loaded.reference
        self.num_tokens = self.num_prompts = 0
        self._share_out()

    def become(self, size: int) -> None:
        """Be shared out over so many ranks from now on, weights and optimizer as they are, where that can be.

        What a plan does bit for bit depends on how many ranks carry it out. Raises `StoreFull` where weights and moments
        find no room in the scratch folder; they are then as they were.
        """
        if size == self.group.size or self._recruits is None or not self._recruits.can_be(size):
            return
        num_tokens, num_prompts = self.num_tokens, self.num_prompts
        logger.info("the policy goes from %d processes to %d", self.group.size, size)
        with set_aside(self._scratch) as folder:
            weights, moments, reference = folder / "weights", folder / "moments", folder / "reference"
            save_tensors(trained_tensors(self.model), weights)
            save_tensors(moments_of(self.model, self.optimizer), moments)
            if self.reference_state is not None:
                save_tensors(self.reference_state, reference)
            steps = step_counts(self.model, self.optimizer)
            self.group = self._recruits.form(size)
            self.begin_again()
            fill_from(weights, trained_tensors(self.model))
            renew_moments(self.model, self.optimizer, steps)
            fill_from(moments, moments_of(self.model, self.optimizer))
            if self.reference_state is not None:
                fill_from(reference, self.reference_state)
        self.num_tokens, self.num_prompts = num_tokens, num_prompts
        if self.peak_flops_per_second is not None:
            self.find_peak()

    def let_go(self) -> None:
        """Of model, optimizer and reference, before others are loaded: there is no room for two of each."""
        self._weights.clear()
        del self.model, self.optimizer, self.reference
        # Whoever wraps a model's `forward` has it refer to itself.
        gc.collect()

    def check(self) -> None:
        """Raise `LearnerRankLost` where a rank is gone or silent."""
        if self._recruits is not None:
            self._recruits.check()

    def gather(self, name: str, moment: str | None, *, of_reference: bool = False) -> Tensor:
        """A weight in one piece, or a moment of it; or the reference's weight of that name."""
        return self._together(Gather(name, moment, of_reference))

    def scatter(self, name: str, moment: str | None, whole: Tensor, *, of_reference: bool = False) -> None:
        """Fill the shards of what `gather` gives."""
        self._together(Scatter(name, moment, of_reference), whole)

    def reset_moments(self, steps: Mapping[str, float]) -> None:
        """See `agrpo.tensors.moments.reset_moments`."""
        self._together(ResetMoments(dict(steps)))

    def share(self, name: str, moment: str | None, *, of_reference: bool = False) -> Tensor:
        """What this rank holds of what `gather` gives."""
        if of_reference:
            return copy_of(self.reference).model.get_parameter(name).detach()
        weight = self._weights[name]
        return weight.detach() if moment is None else self.optimizer.state[weight][moment]

    def _share_out(self) -> None:
        self._weights = dict(self.model.named_parameters())
        if self.group.mesh is not None:
            share_out(self.model, _Shards(self))
            if isinstance(self.reference, Copy):
                share_out(self.reference.model, _Shards(self, of_reference=True))

    def _together(self, deed: Deed, given: Any = None) -> Any:
        with self._lock, named(self.group, self._recruits):
            self.group.announce(deed)
            return deed(self, given)


class _Shards:
    """A trainee as its model knows it: without keeping it, or itself, alive."""

    def __init__(self, trainee: Trainee, *, of_reference: bool = False) -> None:
        self._trainee = ref(trainee)
        self._of_reference = of_reference

    def gather(self, name: str, moment: str | None) -> Tensor:
        return self._alive.gather(name, moment, of_reference=self._of_reference)

    def scatter(self, name: str, moment: str | None, whole: Tensor) -> None:
        self._alive.scatter(name, moment, whole, of_reference=self._of_reference)

    def reset_moments(self, steps: Mapping[str, float]) -> None:
        self._alive.reset_moments(steps)

    @property
    def _alive(self) -> Trainee:
        trainee = self._trainee()
        assert trainee is not None, "the trainee whose weights these are is no more"
        return trainee


def begin(
    origin: Origin,
    group: Group | None = None,
    recruits: Recruits | None = None,
    *,
    scratch: Callable[[], Path] | None = None,
) -> Trainee:
    """As rank 0, have all ranks load the trainee. `group`: None for a process alone, on its first GPU or the CPU."""
    group = group or Group()
    with named(group, recruits):
        group.announce(Begin(origin))
        return Trainee.of(origin, group, recruits, scratch=scratch)


def follow(group: Group) -> None:
    """As another rank, do what rank 0 announces, until it says that all is done."""
    trainee: Trainee | None = None
    while (deed := group.hear()) is not None:
        with named(group), suppress(NotFinite):  # rank 0 says what comes of it
            if isinstance(deed, Begin):
                if trainee is not None:
                    trainee.let_go()
                trainee = Trainee.of(deed.origin, group)
            else:
                assert trainee is not None, "rank 0 begins with a trainee"
                deed(trainee)
    group.leave()


@dataclass(frozen=True, slots=True)
class Begin:
    """Load the trainee anew."""

    origin: Origin


class Deed(Protocol):
    """What all ranks do with the trainee at the same time."""

    def __call__(self, trainee: Trainee, given: Any = None) -> Any:
        """`given`: what rank 0 alone has. What it returns is for rank 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """What decides an optimizer step beside its rows."""

    objective: Objective
    totals: StepTotals
    temperature: float
    learning_rate: float
    max_grad_norm: float
    seed: int


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step. Given: all rows in the plan's order, and what to call after each of rank 0's."""

    step: UpdateSettings

    def __call__(self, trainee: Trainee, given: Any = None) -> UpdateOutcome:
        rows, on_row = given or ([], lambda: None)
        group, step = trainee.group, self.step
        mine = group.dealt([rows[rank :: group.size] for rank in range(group.size)])
        seed_draws(step.seed)
        return update(
            trainee.model,
            trainee.optimizer,
            mine,
            objective=step.objective,
            totals=step.totals,
            temperature=step.temperature,
            learning_rate=step.learning_rate,
            max_grad_norm=step.max_grad_norm,
            on_row=on_row,
            group=group,
            reference=trainee.reference,
        )


@dataclass(frozen=True, slots=True)
class MakeProbe:
    """The probe of the weights as they are."""

    seed: int

    def __call__(self, trainee: Trainee, given: Any = None) -> Probe:
        return make_probe(trainee.model, self.seed)


@dataclass(frozen=True, slots=True)
class Gather:
    """A weight in one piece, or a moment of it; or the reference's weight."""

    name: str
    moment: str | None
    of_reference: bool = False

    def __call__(self, trainee: Trainee, given: Any = None) -> Tensor:
        return whole(trainee.share(self.name, self.moment, of_reference=self.of_reference))


@dataclass(frozen=True, slots=True)
class Scatter:
    """Shards of what `Gather` gives filled. Given: the whole of it."""

    name: str
    moment: str | None
    of_reference: bool = False

    def __call__(self, trainee: Trainee, given: Any = None) -> None:
        take_share(trainee.share(self.name, self.moment, of_reference=self.of_reference), given)


@dataclass(frozen=True, slots=True)
class ResetMoments:
    """The optimizer's state forgotten, and begun anew for these weights."""

    steps: dict[str, float]

    def __call__(self, trainee: Trainee, given: Any = None) -> None:
        reset_moments(trainee.model, trainee.optimizer, self.steps)
