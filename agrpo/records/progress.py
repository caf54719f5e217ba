"""What a run writes about its own progress: attempts, plans, finished steps, published versions, acknowledgements.

These are the run's write-ahead log (docs/architecture.md). Each is written once, as JSON, and never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agrpo.records.outcome import RowFacts, SampleOutcome
from agrpo.records.timings import StepTimings


class DropReason(StrEnum):
    """Why a group was consumed without being trained."""

    EQUAL_REWARDS = "equal_rewards"
    TOO_FEW_SCORES = "too_few_scores"
    LEFT_OUT = "left_out"
    """One of the run's filters leaves the group out; the drop says which."""
    REFUSED_PROMPT = "refused_prompt"
    FILTERED = "filtered"
    """The run's own `filter_prompt` left the prompt out."""
    STALE = "stale"
    OVERSIZE = "oversize"
    """Every sample of the group is longer than `step.micro_tokens`."""
    FAILED = "failed"
    """No rollout of the group came back from the engine."""
    VOID_VERSION = "void_version"
    """Sampled by weights that are no longer part of the history."""
    VOID_BASE = "void_base"
    """Claimed by a generator that had not seen that the run went back; its prompt is given out again."""
    REISSUED = "reissued"
    """Part of the future that the run left behind; its prompt is given out again."""


VOID = frozenset({DropReason.VOID_BASE, DropReason.REISSUED})
"""Dropped on their claim, whether there is a slot of them or not: their prompts are given out again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One incarnation of the learner: a fence. An older learner that sees it stops."""

    attempt: int
    host: str
    pid: int
    started_at: float
    """Unix seconds."""
    machine: dict[str, str] = field(default_factory=dict)
    """What decides the bits that arithmetic gives there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Where an attempt's history joins an older one. A void base belongs to an attempt that produced nothing."""

    attempt: int
    parent: int | None = None
    """None: this attempt began the run."""
    base_step: int = 0
    """Last step taken over from the parent."""
    adopted_through: int = 0
    """Last step whose sampled groups stay valid."""
    void: bool = False
    rewind: int | None = None
    """The wish to go back that this base fulfils, and all before it."""
    first_ticket: int | None = None
    """After going back: lies above every ticket that was claimed before."""
    reissue: list[int] = field(default_factory=list)
    """Tickets that are void for ever, whether they are written or not."""
    prompts: list[int] = field(default_factory=list)
    """Prompt numbers given out first, from `first_ticket` on."""
    next_prompt: int = 0
    """Prompt number given out after those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A wish: go back to a step, and on from there. The next attempt fulfils it."""

    number: int
    step: int
    asked_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSample:
    """One sample of a step, with the decision that a replay could not take again."""

    ticket: int
    rollout_index: int
    sequence_index: int
    advantage: float
    """Exactly an fp32 number."""
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A group consumed without training."""

    ticket: int
    reason: DropReason
    left_out_by: str | None = None
    """Name of the filter, where that is the reason."""

    @property
    def told(self) -> str:
        """The reason in words."""
        return self.reason.value if self.left_out_by is None else f"{self.reason} by {self.left_out_by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that decides one optimizer step, written before the weights are touched."""

    attempt: int
    step: int
    """Number of the step, from 1."""
    tickets: list[int]
    """Groups trained by the step, in order."""
    drops: list[Drop]
    """Groups consumed without training since the plan before."""
    samples: list[PlannedSample]
    rows: list[list[int]]
    """What is forwarded at once, each numbers into `samples`. Row `m * ranks + r` is that of rank `r` in micro-batch `m`;
    one is empty only where there are fewer samples than rows, and its rank then forwards a token without a term."""
    ranks: int = 1
    """Processes that the learner's rows are for."""
    num_replaced: int = 0
    """Dropped groups that took no place of the step, so that others came instead."""
    untrained_in_a_row: int = 0
    """Groups dropped since the last one that could be trained, this plan's included."""
    num_updates: int = 0
    """Optimizer updates of the history, this step's included; an empty step is none."""
    num_oversize: int = 0
    """Samples left out because they are longer than `step.micro_tokens`."""
    num_truncated: int = 0
    """Samples left out because their rollout was cut for its length (`step.mask_truncated`)."""
    num_queued_samples: int | None = None
    """Samples of scored groups that waited when the step's groups began to be chosen."""
    num_trained_tokens: int
    version: int
    """Newest version published before this step."""
    learning_rate: float
    entropy_coefficient: float | None = None
    """Of the bonus for entropy, before the step. None: there is no bonus."""
    seed: int
    publish: int | None
    """Version that the step's weights are published as; None: not published."""
    ordinal: int | None = None
    """Publishes of the history up to this step, its own included: what staleness counts. None: `publish` or `version`."""
    parent_digest: str = ""
    """Of the weights before the step."""
    config_digest: str
    planned_at: float
    """Unix seconds."""
    adopted_from: int | None = None
    """Attempt that planned the step, where another one carries it out."""

    @property
    def consumed(self) -> list[int]:
        """Every ticket the plan consumes, trained or dropped."""
        return [*self.tickets, *(drop.ticket for drop in self.drops)]

    @property
    def scored(self) -> list[int]:
        """Those of them that have scores."""
        return [*self.tickets, *(drop.ticket for drop in self.drops if drop.reason not in VOID)]

    @property
    def num_void(self) -> int:
        """Consumed tickets whose prompts are given out again under others."""
        return sum(drop.reason in VOID for drop in self.drops)

    @property
    def empty(self) -> bool:
        """Whether no token is trained, so that weights, optimizer and schedule stay as they are."""
        return self.num_trained_tokens == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished optimizer step."""

    attempt: int
    step: int
    digest: str
    """Of all weights after the step; of the adapter's, where one is trained."""
    digests: dict[str, str]
    """By tensor."""
    reference_digest: str | None = None
    """Of all weights of the reference policy, where it moved after the step. None: it stayed, or there is none."""
    loss: float
    grad_norm: float
    aux_loss: float | None = None
    """Of balancing the experts of a mixture, before its coefficient. None: there is no such loss."""
    policy_loss: float | None = None
    """The loss without the bonus for entropy. None: there is no bonus, or nothing was trained."""
    entropy_coefficient: float | None = None
    """Of the bonus for entropy, after the step. None: there is no bonus."""
    metrics: dict[str, float]
    """Documented metric names."""
    samples: list[SampleOutcome]
    rows: list[RowFacts] = field(default_factory=list)
    timings: StepTimings = field(default_factory=StepTimings)
    peak_flops_per_second: float | None = None
    """Most that all training devices together can do in the type they compute in. None: unknown."""
    num_tokens: int
    """Tokens forwarded since the start of the run."""
    num_prompts: int
    """Prompts consumed since the start of the run."""
    publish: int | None
    empty: bool
    started_at: float
    """Unix seconds."""
    finished_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A check that an engine serves the weights it should: next-token log-probs (temperature 1, nats)."""

    token_ids: list[int]
    top_ids: list[int]
    top_logprobs: list[float]


class WeightsForm(StrEnum):
    """What the folder of a published version holds."""

    FULL = "full"
    """`model.safetensors`: every weight of the model; an adapter is merged."""
    ADAPTER = "adapter"
    """`adapter_model.safetensors` and `adapter_config.json`: an adapter, as PEFT and vLLM load it beside the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReady:
    """A published policy version."""

    version: int
    attempt: int
    step: int
    """Optimizer step whose weights these are."""
    ordinal: int | None = None
    """Publishes of the history up to that step, this one included; None: `version`."""
    digest: str
    """Of what the folder holds."""
    folder: str
    """Key of the folder."""
    form: WeightsForm = WeightsForm.FULL
    step_digest: str | None = None
    """Of what the step trained, as its done record has it. None: `digest`, where every weight is trained."""
    probe: Probe
    published_at: float
    """Unix seconds."""

    @property
    def trained_digest(self) -> str:
        """What the done record of the step has as its digest."""
        return self.digest if self.step_digest is None else self.step_digest

    @property
    def ordinal_or_version(self) -> int:
        """What staleness counts."""
        return self.version if self.ordinal is None else self.ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """An engine serves a version, and its probe agreed."""

    engine: str
    version: int
    acknowledged_at: float
    """Unix seconds."""
    probe_difference: float
    """Largest absolute difference of the probe's log-probs, nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """What a checkpoint knows beside tensors."""

    attempt: int
    step: int
    digest: str
    floor: int
    """Every ticket below it is consumed."""
    consumed: list[int]
    """Consumed tickets at or above the floor."""
    num_replaced: int
    """Consumed groups that took no place of a step."""
    num_void: int = 0
    """Consumed tickets whose prompts were given out again under others."""
    num_tokens: int
    num_prompts: int
    version: int
    entropy_coefficient: float | None = None
    """Of the bonus for entropy in the step after. None: there is no bonus, or no step was done."""
    ordinal: int | None = None
    """Publishes of the history up to the step; None: `version`."""
    next_ticket: int | None = None
    """No ticket from here on was claimed when the checkpoint was written."""
    written_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The learner's word to generators. May be stale: a stale hint makes someone wait, never wrong."""

    limit_ticket: int | None
    """First ticket that may not be claimed; None: no token allowance (lockstep)."""
    dropped: int
    """Groups consumed without training that had to be replaced."""
    floor: int
    finished: bool = False
    """The run has its last step; nothing more is needed. Heeded where it is the word of the newest attempt."""
    attempt: int | None = None
    """Whose word it is."""
    replaced_below_floor: int | None = None
    """In lockstep: tickets below the floor that took no place of a step."""
    written_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth telling, by stream and number."""

    stream: str
    number: int
    kind: str
    at: float
    """Unix seconds."""
    attempt: int | None = None
    payload: dict[str, Any] = field(default_factory=dict)
