"""What a run writes about its own progress: attempts, plans, finished steps, published versions, acknowledgements.

These are the run's write-ahead log (docs/architecture.md). Each is written once, as JSON, and never changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

import pydantic

from agrpo.errors import RecordError

T = TypeVar("T")

SCHEMA_MAJOR = 1
"""A reader refuses documents of a higher major version; fields it does not know are ignored."""


class DropReason(StrEnum):
    """Why a group was consumed without being trained."""

    EQUAL_REWARDS = "equal_rewards"
    TOO_FEW_SCORES = "too_few_scores"
    REFUSED_PROMPT = "refused_prompt"
    STALE = "stale"
    OVERSIZE = "oversize"
    """Every sample of the group is longer than `step.micro_tokens`."""
    FAILED = "failed"
    """No rollout of the group came back from the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One incarnation of the learner: a fence. An older learner that sees it stops."""

    attempt: int
    host: str
    pid: int
    started_at: float
    """Unix seconds."""


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
    """Micro-batches: numbers into `samples`."""
    num_replaced: int = 0
    """Dropped groups that took no place of the step, so that others came instead."""
    untrained_in_a_row: int = 0
    """Groups dropped since the last one that could be trained, this plan's included."""
    num_updates: int = 0
    """Optimizer updates of the history, this step's included; an empty step is none."""
    num_oversize: int = 0
    """Samples left out because they are longer than `step.micro_tokens`."""
    num_queued_samples: int | None = None
    """Samples of scored groups that waited when the step's groups began to be chosen."""
    num_trained_tokens: int
    version: int
    """Newest version published before this step."""
    learning_rate: float
    seed: int
    publish: int | None
    """Version that the step's weights are published as; None: not published."""
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
    def empty(self) -> bool:
        """Whether no token is trained, so that weights, optimizer and schedule stay as they are."""
        return self.num_trained_tokens == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutcome:
    """What the learner saw of one sample. Token statistics are over the sample's trained tokens."""

    ticket: int
    rollout_index: int
    sequence_index: int
    micro_batch: int
    advantage: float
    staleness: int
    num_tokens: int
    """Forwarded tokens."""
    num_trained_tokens: int
    entropy_mean: float
    """Nats."""
    logprob_difference_mean: float
    """Absolute difference between sampler and recomputed log-prob, nats."""
    logprob_difference_max: float
    ratio_min: float
    """Importance ratio before any masking."""
    ratio_mean: float
    ratio_max: float
    masked_share: float
    """Tokens left out of the loss because their ratio is out of bounds."""
    clipped_low_share: float
    """Tokens below the trust region whose advantage is negative."""
    clipped_high_share: float
    """Tokens above the trust region whose advantage is positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """One micro-batch as it was forwarded."""

    num_samples: int
    num_tokens: int
    """Forwarded tokens."""
    attention_cost: int
    """Pairs of a token and one that it attends to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimings:
    """Where the wall time went since the step before was done. The parts add up to `step_seconds`."""

    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    """For scored groups."""
    read_seconds: float = 0.0
    """Reading scores and groups."""
    plan_seconds: float = 0.0
    """Advantages, rows, and writing the plan."""
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    digest_seconds: float = 0.0
    record_seconds: float = 0.0
    """Writing what the step before had done."""
    sync_seconds: float = 0.0
    """Publishing weights: the transfer, and their probe and record."""
    sync_transfer_seconds: float = 0.0
    """Writing the weights; a part of `sync_seconds`."""
    checkpoint_seconds: float = 0.0
    other_seconds: float = 0.0
    num_syncs: int = 0
    """Versions published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished optimizer step."""

    attempt: int
    step: int
    digest: str
    """Of all weights after the step."""
    digests: dict[str, str]
    """By tensor."""
    loss: float
    grad_norm: float
    metrics: dict[str, float]
    """Documented metric names."""
    samples: list[SampleOutcome]
    rows: list[RowFacts] = field(default_factory=list)
    timings: StepTimings = field(default_factory=StepTimings)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReady:
    """A published policy version."""

    version: int
    attempt: int
    step: int
    """Optimizer step whose weights these are."""
    digest: str
    folder: str
    """Key of the folder that holds `model.safetensors`."""
    probe: Probe
    published_at: float
    """Unix seconds."""


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
    num_tokens: int
    num_prompts: int
    version: int
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
    """The run has its last step; nothing more is needed."""
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


@cache
def _adapter(cls: type[Any]) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(cls)


def dump(record: Any) -> bytes:
    """The record as a JSON document that names its schema. Floats survive exactly."""
    body = _adapter(type(record)).dump_python(record, mode="json")
    return json.dumps({"schema": type(record).__name__, "schema_version": f"{SCHEMA_MAJOR}.0", **body}).encode()


def load(cls: type[T], data: bytes | memoryview) -> T:
    """The record in a document. Raises `RecordError` for another schema, a higher major version, or torn bytes."""
    try:
        document = json.loads(bytes(data))
        schema, version = document["schema"], document["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"not a {cls.__name__} document: {error!r}; the file is damaged or not agrpo's") from None
    if schema != cls.__name__:
        raise RecordError(f"expected a {cls.__name__} document, found {schema}")
    if int(str(version).partition(".")[0]) > SCHEMA_MAJOR:
        raise RecordError(
            f"a {schema} document of schema version {version}; this agrpo reads up to {SCHEMA_MAJOR}.x: upgrade agrpo"
        )
    try:
        return _adapter(cls).validate_python(
            {key: value for key, value in document.items() if not key.startswith("schema")}
        )
    except pydantic.ValidationError as error:
        raise RecordError(
            f"a damaged {schema} document: {error.errors()[0]['loc']} {error.errors()[0]['msg']}"
        ) from None
