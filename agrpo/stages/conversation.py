"""One rollout as it grows: turns of the model, and between them what its tools answer. It ends without a call, or at a limit.

One that acts in an environment is asked what that says when it is reset, and ends with what that pays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from agrpo.environments.pool import Broken, Pool
from agrpo.errors import PromptError
from agrpo.records.prompt import Message
from agrpo.records.rollout import UNANSWERED, CallFailure, Rollout, StopReason, ToolCall, TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.records.seeds import derive_seed
from agrpo.stages.rendering import Renderer
from agrpo.stages.timing import timed
from agrpo.stages.tool_talk import ToolTalk
from agrpo.tools.calling import ToolRunner
from agrpo.tools.formats import RequestedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """What rollouts need to call tools."""

    talk: ToolTalk
    runner: ToolRunner
    max_iterations: int | None
    """Turns whose calls are run. None: as many as there is room for."""
    max_calls: int
    """Calls of one turn that are run."""
    max_tokens: int
    """Most tokens of a whole conversation: no longer one can be trained."""

    def refusal(self, num_before: int, num_tokens: int) -> str | None:
        """Why a call is not run. `num_before`: calls before it in its turn; `num_tokens`: of all that it would follow."""
        if num_before >= self.max_calls:
            return f"the first {self.max_calls} calls of a turn are"
        return "there is no room for its result" if num_tokens >= self.max_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the rollouts of a group have in common."""

    messages: list[Message]
    prompt_ids: list[int] = field(default_factory=list[int])
    """Of the messages, with the tools that the model is shown. Empty where an environment says what is asked."""
    sampling: Sampling
    seeds: tuple[int, int]
    """Run seed and ticket."""
    calling: Calling | None = None
    """None: a rollout is one turn."""
    pool: Pool | None = None
    """Of the environment in which they act."""
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the prompt's row, for `reset`."""
    is_own: bool = False
    """Whether a hook has put the messages in the place of the row's, for one rollout alone."""


class Conversation:
    """One rollout of a group: `begin`, then turn by turn until it is over, then `end`."""

    def __init__(self, renderer: Renderer, opening: Opening, index: int) -> None:
        self._renderer = renderer
        self._opening = opening
        self._index = index
        self._calling = opening.calling
        self._visit = None if opening.pool is None else opening.pool.visit(opening.columns)
        self._messages = opening.messages
        self._prompt_ids = opening.prompt_ids
        self._completion: list[Message] = []
        self._turns: list[TurnRecord] = []
        self._calls: list[ToolCall] = []
        self._asked_for: list[RequestedCall] = []
        self._num_iterations = 0
        self._ended: StopReason | None = None
        self._error: str | None = None
        self._began = self._asked_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self._ended is not None

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    @property
    def _num_failed_calls(self) -> int:
        return sum(call.failure is not None for call in self._calls)

    @property
    def chose_its_prompt(self) -> bool:
        """Whether its environment had a say in what it is asked, so that no other rollout is asked the same."""
        return self._messages is not self._opening.messages

    async def begin(self) -> None:
        """Its time runs from now on. Where it acts in an environment, that is made and reset, which may end the rollout.

        Raises `EnvironmentFault` or `ToolError`.
        """
        self._began = time.monotonic()
        if self._visit is None:
            return
        try:
            told = await self._visit.begin()
            self._messages = self._asked(told)
            self._prompt_ids = self._talk.prompt(self._messages)
        except (Broken, PromptError) as error:
            self.fail(StopReason.ENVIRONMENT_ERROR, str(error))
            return
        if self._calling is not None:
            self._calling = replace(self._calling, runner=self._calling.runner.beside(self._visit.tools))

    async def end(self) -> None:
        """Ask its environment for the reward, and give it back. Raises `EnvironmentFault` or `ToolError`."""
        if self._visit is not None:
            await self._visit.end(judged=self._ended not in UNANSWERED)

    def abandon(self) -> None:
        """Give its environment back, unless the rollout has ended; something of it may still run."""
        if self._visit is not None:
            self._visit.abandon()

    def request(self) -> CompletionRequest:
        """The next turn's, whose time begins. No turn after the first may grow the conversation beyond what can be trained."""
        sampling = self._opening.sampling
        if self._turns and self._calling is not None:
            room = self._calling.max_tokens - len(self._prompt_ids)
            sampling = replace(sampling, max_completion_length=min(sampling.max_completion_length, room))
        self._asked_at = time.monotonic()
        return CompletionRequest(
            prompt_ids=self._prompt_ids,
            seed=self._seed(len(self._turns)),
            sampling=sampling,
            stop_ids=self._renderer.stop_ids,
        )

    def take(self, turn: TurnRecord) -> None:
        """The answer to the last `request`. Where it calls tools, `answer_calls` is next; else the rollout is over."""
        self._turns.append(timed(turn, began=self._began, asked=self._asked_at))
        calling = self._calling
        if calling is None or turn.stop_reason is not StopReason.STOP:
            self._say(self._renderer.text(turn.output_ids))
            self._ended = turn.stop_reason
            return
        read = calling.talk.read(turn.output_ids, turn.prompt_ids)
        if not read.calls or any(call.problem for call in read.calls):
            self._say(self._renderer.text(turn.output_ids))  # as it was written, so that it can be seen what is wrong
        else:
            self._say(read.content, read.calls, read.reasoning)
        self._asked_for = read.calls
        if not read.calls:
            self._ended = turn.stop_reason
        elif self._num_iterations == calling.max_iterations:
            self._ended = StopReason.MAX_TURNS
            why = f"calls of {calling.max_iterations} turns have been, and the rollout ends"
            self._calls += [calling.runner.refuse(call, len(self._turns) - 1, why).record for call in read.calls]

    async def answer_calls(self) -> None:
        """Run the calls of the last turn, one after the other, and go on to the next prompt. Raises `ToolError`."""
        assert self._calling is not None and not self.is_over, "only a rollout that goes on has calls to answer"
        self._num_iterations += 1
        number, turn = len(self._calls), len(self._turns) - 1
        num_tokens = len(self._prompt_ids) + len(self._turns[-1].output_ids) if self._calling.talk.appends else 0
        last = number + len(self._asked_for) - 1
        for place, call in enumerate(self._asked_for, number):
            refusal, run = self._calling.refusal(place - number, num_tokens), self._calling.runner
            with nullcontext() if self._visit is None else self._visit.in_call():
                answer = await run(call, turn) if refusal is None else run.refuse(call, turn, refusal)
            num_tokens += len(self._renderer.encode(answer.text)) if place < last else 0
            self._calls.append(answer.record)
            hangs = answer.record.failure is CallFailure.TIMEOUT
            if hangs and self._visit is not None and call.name in self._visit.tools:
                self._visit.note_hanging()
            told: Message = {
                "role": "tool",
                "content": self._renderer.harmless(answer.text),
                "tool_call_id": _call_id(place),
            }
            self._completion.append({**told, "name": call.name} if call.name else told)
        self._go_on(self._calling, len(self._asked_for))

    def end_for_length(self) -> None:
        """The engine has no room for another turn."""
        self._ended = StopReason.LENGTH

    def fail(self, why: StopReason, error: str) -> None:
        """What it needs was not there: nothing of it can be judged."""
        self._ended, self._error = why, f"turn {len(self._turns)}: {error}" if self._turns else error

    def rollout(self) -> Rollout:
        """What came of it. Where a request was not answered nothing can be judged, and its calls have been made."""
        assert self._ended is not None, "a rollout is told when it is over"
        answered = self._ended not in UNANSWERED
        turns = self._turns if answered else []
        return Rollout(
            completion=self._completion if answered else [],
            completion_ids=[token for turn in turns for token in turn.output_ids],
            turns=turns,
            tool_call_count=len(self._calls),
            tool_failure_count=self._num_failed_calls,
            rollout_id=f"{self._seed(0):016x}",
            index=self._index,
            seed=self._seed(0),
            stop_reason=self._ended,
            error=self._error,
            duration_seconds=time.monotonic() - self._began,
            tool_calls=self._calls,
            prompt=self._messages if self.chose_its_prompt or self._opening.is_own else None,
            stay=None if self._visit is None else self._visit.stay(),
        )

    @property
    def _talk(self) -> ToolTalk | Renderer:
        """What makes tokens of its prompt."""
        return self._renderer if self._calling is None else self._calling.talk

    def _asked(self, told: str | None) -> list[Message]:
        """The prompt, with what `reset` returned (A-252). Raises `PromptError` where there is none (A-253)."""
        messages = self._opening.messages
        if told is None:
            if not messages:
                raise PromptError(
                    "there is nothing to ask: the row has no prompt and reset returned None; return a string, or give the row "
                    'a "prompt" column'
                )
            return messages
        told = self._renderer.harmless(told)
        last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=None)
        if last is None:
            return [*messages, {"role": "user", "content": told}]
        longer = {**messages[last], "content": f"{messages[last]['content'] or ''}{told}"}
        return [*messages[:last], longer, *messages[last + 1 :]]

    def _seed(self, turn_index: int) -> int:
        return derive_seed(*self._opening.seeds, self._index, turn_index)

    def _say(self, content: str, calls: Sequence[RequestedCall] = (), reasoning: str = "") -> None:
        message: Message = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {
                    "id": _call_id(place),
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for place, call in enumerate(calls, len(self._calls))
            ]
        self._completion.append(message)

    def _go_on(self, calling: Calling, num_results: int) -> None:
        last = self._turns[-1]
        kept, messages = last.prompt_ids + last.output_ids, [*self._messages, *self._completion]
        try:
            self._prompt_ids = calling.talk.following(kept, messages, num_results)
        except PromptError as error:
            self._ended, self._error = StopReason.TOOL_ERROR, str(error)
            return
        if len(self._prompt_ids) >= calling.max_tokens:
            self._ended = StopReason.LENGTH


async def side_by_side(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Of several rollouts. What one raises is raised at once; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _call_id(place: int) -> str:
    """Nine letters and digits, as the strictest template wants them."""
    return f"call{place:05d}"
