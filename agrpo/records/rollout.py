"""Rollouts: one whole conversation for a prompt, kept as the tokens that the engine was given and returned."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agrpo.records.prompt import Message


class StopReason(StrEnum):
    """Why a turn or a rollout ended."""

    STOP = "stop"
    """The model ended its turn."""
    LENGTH = "length"
    """`max_completion_length` tokens without an end; of a rollout also: no room for another turn."""
    MAX_TURNS = "max_turns"
    """It called tools again after `max_tool_calling_iterations` turns that did."""
    TOOL_ERROR = "tool_error"
    """The model's chat template cannot take what its tools answered."""
    TIMEOUT = "timeout"
    ENGINE_ERROR = "engine_error"
    ENVIRONMENT_ERROR = "environment_error"
    """Its environment could not be made or reset, or gave a prompt that cannot be asked."""
    STALE_IN_FLIGHT = "stale_in_flight"
    """Broken off, since its version had become too old to be trained: no fault of the engine."""


class CallFailure(StrEnum):
    """Why a tool call gave no result. The model is told, and the rollout goes on."""

    MALFORMED = "malformed"
    """It cannot be read."""
    UNKNOWN_NAME = "unknown_name"
    """No tool has that name."""
    BAD_ARGUMENTS = "bad_arguments"
    """The tool takes others."""
    RAISED = "raised"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """It was one too many, and not begun."""


UNANSWERED = (
    StopReason.ENGINE_ERROR,
    StopReason.TIMEOUT,
    StopReason.ENVIRONMENT_ERROR,
    StopReason.STALE_IN_FLIGHT,
)
"""No answer of the policy came out, so that there is nothing to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One sampling request. The first six fields are the documented ones (A-228 to A-232)."""

    prompt_ids: list[int]
    """Whole prompt of the turn, earlier turns included."""
    output_ids: list[int]
    """Sampled tokens, the stop token included."""
    output_log_probs: list[float] = field(default_factory=list)
    """Log-prob of each output token under the distribution it was sampled from, in nats."""
    output_mask: list[int] | None = None
    """1: train, 0: context only. None trains all."""
    output_sampling_mask: list[list[int]] | None = None
    """Candidate ids per output token. None: the full vocabulary."""
    output_sampler_logprobs: Sequence[dict[int, float]] | None = None
    """The sampler's most likely tokens per output token, log-prob by token id. None: not asked for."""
    output_versions: list[int] = field(default_factory=list)
    """Policy version that sampled each output token."""
    stop_reason: StopReason = StopReason.STOP
    begun_seconds: float | None = field(default=None, compare=False)
    """From the rollout's begin to the request. None: not known. The clock's, and so no part of what makes turns equal."""
    duration_seconds: float | None = field(default=None, compare=False)
    """From the request to its answer, one that was asked again included. None: not known, or nothing was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, in the order the model made them. Its arguments and its result are in the messages."""

    turn_index: int
    """Turn that made it."""
    name: str
    """As the model wrote it; empty where none can be read."""
    duration_seconds: float = 0.0
    """From the moment it was its turn; 0 where nothing ran."""
    failure: CallFailure | None = None
    reason: str | None = None
    """What the model was told, where it failed; of one that was refused, why, though the rollout may have ended there."""

    @property
    def is_known(self) -> bool:
        """Whether it is a call of one of the run's tools, failed or not."""
        return self.failure not in (CallFailure.MALFORMED, CallFailure.UNKNOWN_NAME)

    @property
    def ran(self) -> bool:
        """Whether the tool was begun."""
        return self.failure in (None, CallFailure.RAISED, CallFailure.TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """What became of a rollout in its environment."""

    environment: str
    """Name of the class."""
    reset_seconds: float = 0.0
    """Of making an instance, where there was none to use again, and of its `reset`."""
    reward_seconds: float | None = None
    """Of `get_reward`. None: it was not asked."""
    reward: float | None = None
    """Its value. None: it gave none."""
    reward_error: str | None = None
    """Why, where something failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One conversation for a prompt. The first seven fields are the documented ones (A-222 to A-227)."""

    completion: list[Message]
    """Messages after the prompt."""
    completion_ids: list[int]
    """Generated tokens of all turns."""
    turns: list[TurnRecord]
    tool_call_count: int = 0
    tool_failure_count: int = 0
    reward: float | None = None
    """A reward the rollout brought itself; added to the other sources."""
    rollout_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    index: int = 0
    """Place in the group."""
    seed: int = 0
    stop_reason: StopReason = StopReason.STOP
    error: str | None = None
    """What failed, where `stop_reason` says that something did."""
    duration_seconds: float = 0.0
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    prompt: list[Message] | None = None
    """What it was asked, where its environment or a hook had a say in that. None: the group's prompt."""
    stay: Stay | None = None
    """None: it had no environment."""
    columns: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the run's `rollout_func` returned with it, by name: rewards are given it beside the row's columns."""

    @property
    def terminated(self) -> bool:
        """Whether the model ended its last turn itself."""
        return bool(self.turns) and self.turns[-1].stop_reason is StopReason.STOP

    @property
    def failed(self) -> bool:
        """Whether no answer of the policy came out."""
        return self.stop_reason in UNANSWERED

    @property
    def broken_off(self) -> bool:
        """Whether it was ended since its version had become too old to be trained."""
        return self.stop_reason is StopReason.STALE_IN_FLIGHT
