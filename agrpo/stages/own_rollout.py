"""One rollout that a `generate_one` of the user's makes: its requests to the engine, and what it gives, held to the rules."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agrpo.config import RunConfig
from agrpo.engines import Engine
from agrpo.errors import HookError, PromptRefused
from agrpo.records.prompt import Message
from agrpo.records.rollout import Rollout, StopReason, ToolCall, TurnRecord
from agrpo.records.sample import sequences_of
from agrpo.records.sampling import CompletionRequest
from agrpo.records.seeds import derive_seed
from agrpo.rollout_loop.given_turns import check_ids, fitting_turn
from agrpo.rollout_loop.kinds import are_all, are_messages, is_finite, is_time
from agrpo.rollout_loop.returned import Unfit
from agrpo.rollout_loop.under_way import AskTurn
from agrpo.stages.conversation import Conversation
from agrpo.stages.sampling import ask, converse
from agrpo.stages.timing import timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which rollout it is."""

    ticket: int
    index: int
    row_index: int
    version: int
    """Served when its group began."""

    def __str__(self) -> str:
        return f"rollout {self.index} of ticket {self.ticket} (row {self.row_index})"


class OwnRollout:
    """An `UnderWay`: one rollout of a group."""

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        stop_ids: frozenset[int],
        place: Place,
        *,
        begin: Callable[[list[Message]], Conversation],
        tools: Sequence[Callable[..., Any]],
        num_tokens: int,
    ) -> None:
        """`begin`: makes the conversation that agrpo's own `generate_one` has for messages. Raises `PromptError`.

        `num_tokens`: of the vocabulary.
        """
        self._config = config
        self._engine = engine
        self._stop_ids = stop_ids
        self._place = place
        self._begin = begin
        self._tools = list(tools)
        self._num_tokens = num_tokens
        self._began = time.monotonic()
        self._asked: list[TurnRecord] = []
        self._held: Rollout | None = None
        """What agrpo's own `generate_one` came to."""
        self.num_turns = 0
        """Requests that were begun."""

    async def ask(self, prompt_ids: list[int]) -> TurnRecord:
        """The next turn. Raises `PromptRefused` where nothing more could be trained, else as `sampling.ask`."""
        request, asked = self._request(self._token_ids(prompt_ids)), time.monotonic()
        if request.sampling.reproducible:  # then no clock decides
            (turn,) = await self._engine.complete([request])
        else:
            turn = await ask(self._engine, request)
        turn = timed(turn, began=self._began, asked=asked)
        self._asked.append(turn)
        return turn

    async def converse(self, ask_turn: AskTurn, prompt: list[Message], tools: Sequence[Callable[..., Any]]) -> Rollout:
        if list(tools) != self._tools:
            raise self._wrong(
                f"gave {len(tools)} tools to super().generate_one, which calls the {len(self._tools)} of the run and no others; "
                "give it the list that it was given, and set [tools] functions"
            )

        if not are_messages(prompt):
            raise self._wrong(
                f"gave {repr(prompt)[:80]} to super().generate_one; expected a list of messages, each with a role and a content"
            )

        async def ask_timed(request: CompletionRequest) -> TurnRecord:
            asked = time.monotonic()
            turn = self._given_turn(await ask_turn(request.prompt_ids))
            return timed(turn, began=self._began, asked=asked)

        self._held = await converse(self._begin(prompt), ask_timed)
        return self._held

    def _given_turn(self, turn: Any) -> TurnRecord:
        """What a `generate_one_turn` gave, before it is read. Raises `HookError`."""
        if not isinstance(turn, TurnRecord):
            raise self._wrong(f"gave {type(turn).__name__}; expected agrpo.TurnRecord", "generate_one_turn")
        try:
            return fitting_turn("turn", turn, self._num_tokens)
        except Unfit as error:
            raise self._wrong(f"gave one of which {error}", "generate_one_turn") from None

    def _token_ids(self, given: Any) -> list[int]:
        if not isinstance(given, list) or not all(type(token) is int for token in cast("list[Any]", given)):
            raise HookError(
                f"{self._place}: generate_one_turn was given {type(given).__name__} {str(given)[:60]}; expected a list of token "
                "ids, as tokenizer.apply_chat_template(…, add_generation_prompt=True, return_dict=False) gives"
            )
        ids = cast("list[int]", given)
        try:
            check_ids("prompt_ids", ids, self._num_tokens)
        except Unfit as error:
            raise HookError(f"{self._place}: generate_one_turn was given {error}") from None
        return ids

    def _request(self, prompt_ids: list[int]) -> CompletionRequest:
        number, self.num_turns = self.num_turns, self.num_turns + 1
        sampling, most = self._config.sampling, self._config.step.micro_tokens
        room = most - len(prompt_ids)
        if number and room < 1:
            raise PromptRefused(
                f"turn {number} begins with {len(prompt_ids)} tokens, and no more than step.micro_tokens = {most} can be trained"
            )
        if number:
            sampling = replace(sampling, max_completion_length=min(sampling.max_completion_length, room))
        return CompletionRequest(
            prompt_ids=list(prompt_ids), seed=self._seed(number), sampling=sampling, stop_ids=self._stop_ids
        )

    def _seed(self, turn_index: int) -> int:
        return derive_seed(self._config.run.seed, self._place.ticket, self._place.index, turn_index)

    def failed(self, why: StopReason, error: str) -> Rollout:
        """It came to nothing that can be judged."""
        return self._told(
            self._in_place(Rollout(completion=[], completion_ids=[], turns=[], stop_reason=why, error=error))
        )

    def checked(self, rollout: Any) -> Rollout:
        """What `generate_one` gave, with its place in the group. Raises `HookError` for what cannot be trained."""
        if not isinstance(rollout, Rollout):
            raise self._wrong(f"gave {type(rollout).__name__}; expected agrpo.Rollout")
        self._check_kinds(rollout)
        if self._config.environments.are_given and self._held is None:
            raise self._wrong(
                "left its environment out; the run's [environments] are begun, shown and paid by agrpo's own generate_one: call "
                "super().generate_one, or leave the table out"
            )
        if rollout.failed:
            error = rollout.error or "given up by generate_one"
            given_up = replace(rollout, completion=[], completion_ids=[], turns=[], reward=None, error=error)
            return self._told(self._in_place(given_up))
        rollout = self._with_fitting_turns(rollout)
        self._check_turns(rollout)
        if rollout.reward is not None and not is_finite(rollout.reward):
            raise self._wrong(f"set the reward {rollout.reward!r}; expected a finite number, or None for no opinion")
        try:
            json.dumps(rollout.completion)
        except (TypeError, ValueError) as error:
            raise self._wrong(f"gave messages that JSON cannot hold: {error}") from None
        last = rollout.turns[-1].stop_reason
        turns = [self._with_version(turn) for turn in rollout.turns]
        ended = last if rollout.stop_reason is StopReason.STOP else rollout.stop_reason
        return self._told(self._in_place(replace(rollout, turns=turns, stop_reason=ended)))

    def _in_place(self, rollout: Rollout) -> Rollout:
        """With the environment it was in and the prompt it had there, where it was made from what agrpo's own loop gave."""
        held = self._held
        if held is None:
            return rollout
        prompt = held.prompt if rollout.prompt is None else rollout.prompt
        return replace(rollout, stay=rollout.stay or held.stay, prompt=prompt)

    def _check_kinds(self, rollout: Rollout) -> None:
        """What is written must be readable by all who come after."""
        given: dict[str, tuple[bool, str]] = {
            "completion": (are_messages(rollout.completion), "a list of messages, each with a role and a content"),
            "completion_ids": (are_all(rollout.completion_ids, int), "a list of token ids"),
            "turns": (are_all(rollout.turns, TurnRecord), "a list of TurnRecord"),
            "tool_calls": (are_all(rollout.tool_calls, ToolCall), "a list of ToolCall"),
            "stop_reason": (are_all([rollout.stop_reason], StopReason), "an agrpo.records.rollout.StopReason"),
        }
        for name, (fits, expected) in given.items():
            if not fits:
                raise self._wrong(f"gave {name} = {repr(getattr(rollout, name))[:80]}; expected {expected}")

    def _with_fitting_turns(self, rollout: Rollout) -> Rollout:
        try:
            check_ids("completion_ids", rollout.completion_ids, self._num_tokens)
            turns = [fitting_turn(f"turns[{at}]", turn, self._num_tokens) for at, turn in enumerate(rollout.turns)]
        except Unfit as error:
            raise self._wrong(f"gave a rollout of which {error}") from None
        return replace(rollout, turns=turns)

    def _check_turns(self, rollout: Rollout) -> None:
        if not rollout.turns:
            raise self._wrong("gave no turns; list every TurnRecord that generate_one_turn gave in Rollout.turns")
        missing = Counter(map(_tokens, self._asked)) - Counter(map(_tokens, rollout.turns))
        if missing:
            raise self._wrong(
                f"asked for {len(self._asked)} turns and left {missing.total()} of them out of Rollout.turns; list every one, "
                "with output_mask = [0, …] where it is not to be trained"
            )
        try:
            sequences_of(rollout)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        self._check_lists(rollout)
        if self._config.loss.num_top and any(map(_lacks_top, rollout.turns)):
            raise self._wrong(
                "gave a turn to train without output_sampler_logprobs, which the run's loss reads; keep those of "
                'generate_one_turn, or set loss.name = "clip"'
            )

    def _check_lists(self, rollout: Rollout) -> None:
        """Versions and candidates are of the output tokens, the versions are those of this rollout, and times are times."""
        known = {self._place.version, *(version for turn in self._asked for version in turn.output_versions)}
        for turn in rollout.turns:
            for name, values in (
                ("output_versions", turn.output_versions),
                ("output_sampling_mask", turn.output_sampling_mask),
            ):
                if values and len(values) != len(turn.output_ids):
                    raise self._wrong(
                        f"gave a turn of {len(turn.output_ids)} output tokens and {len(values)} {name}; expected one for each"
                    )
            if not known.issuperset(turn.output_versions):
                raise self._wrong(
                    f"gave a turn sampled by the versions {sorted({*turn.output_versions} - known)}; this rollout's are "
                    f"{sorted(known)}. Leave output_versions out of a turn that the engine has not sampled for it"
                )
            for name, seconds in (("begun_seconds", turn.begun_seconds), ("duration_seconds", turn.duration_seconds)):
                if not is_time(seconds):
                    raise self._wrong(
                        f"gave a turn with {name} = {seconds!r}; expected seconds, 0 or more, or None where they are not known"
                    )

    def _with_version(self, turn: TurnRecord) -> TurnRecord:
        """A turn from elsewhere counts as sampled by the version that was served when its group began."""
        return (
            turn
            if turn.output_versions
            else replace(turn, output_versions=[self._place.version] * len(turn.output_ids))
        )

    def _told(self, rollout: Rollout) -> Rollout:
        seconds = time.monotonic() - self._began
        return replace(rollout, index=self._place.index, seed=self._seed(0), duration_seconds=seconds)

    def _wrong(self, what: str, hook: str = "generate_one") -> HookError:
        return HookError(f"{self._config.rollout_loop.path}: {hook}, {self._place}, {what}")


def _tokens(turn: TurnRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(turn.prompt_ids), tuple(turn.output_ids)


def _lacks_top(turn: TurnRecord) -> bool:
    trained = bool(turn.output_ids) and (turn.output_mask is None or any(turn.output_mask))
    return trained and turn.output_sampler_logprobs is None
