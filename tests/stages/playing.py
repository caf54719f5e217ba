"""Rollouts that call tools, played: an engine that writes what a script says, and models that are only a tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agrpo.config import ModelSection, ToolsSection
from agrpo.engines import Engine
from agrpo.errors import EngineError, PromptRefused
from agrpo.records.rollout import Rollout, StopReason, TurnRecord
from agrpo.records.sampling import CompletionRequest, Sampling
from agrpo.records.seeds import derive_seed
from agrpo.stages.conversation import Calling, Opening
from agrpo.stages.rendering import Renderer
from agrpo.stages.sampling import sample_group
from agrpo.stages.slots import Slots
from agrpo.stages.tool_talk import ToolTalk
from agrpo.tools import load_tools
from agrpo.tools.caller import Caller
from agrpo.tools.calling import ToolRunner
from tests.stages.returned import Returned

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

QUESTION = [{"role": "user", "content": "4 + 5 ="}]
END = 1
"""The stop token of the tests' tokenizer."""
Line = str | list[int] | type[Exception]
"""What a turn says: text, token ids, or what the engine raises instead."""
SEED = (1, 7)
"""Run seed and ticket."""


def call_of(name: str, **arguments: Any) -> str:
    """A call as the tests' template has it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Playing:
    """Says the line of each turn, of each rollout, found by the request's seed, and writes down what it returned."""

    keeps_deadlines, dtype, behind = False, "float32", False

    def __init__(self, renderer: Renderer, line: Callable[[int, int], Line]) -> None:
        self.renderer = renderer
        self.line = line
        self.places = {derive_seed(*SEED, index, turn): (index, turn) for index in range(8) for turn in range(40)}
        self.asked: list[list[CompletionRequest]] = []
        self.returned: dict[int, list[Returned]] = {}
        """By rollout, in the order of its turns."""

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[TurnRecord]:
        self.asked.append(list(requests))
        await asyncio.sleep(0)
        turns = [self._turn(request) for request in requests]
        for request, turn in zip(requests, turns, strict=True):
            index, _ = self.places[request.seed]
            self.returned.setdefault(index, []).append(Returned.of(request.prompt_ids, turn))
        return turns

    def _turn(self, request: CompletionRequest) -> TurnRecord:
        index, turn = self.places[request.seed]
        line = self.line(index, turn)
        if isinstance(line, type):
            raise line(f"turn {turn} of rollout {index}")
        ids = [*self.renderer.encode(line), END] if isinstance(line, str) else line
        ids = ids[: request.sampling.max_completion_length]
        return TurnRecord(
            prompt_ids=list(request.prompt_ids),
            output_ids=ids,
            output_log_probs=[-(place + 1) / 1024 - turn - 40 * index for place, _ in enumerate(ids)],
            output_versions=[3] * len(ids),
            stop_reason=StopReason.STOP if ids[-1] in request.stop_ids else StopReason.LENGTH,
        )

    async def load(self, folder: Path, version: int) -> None:
        raise EngineError("it has no weights")

    async def next_token_logprobs(self, token_ids: Sequence[int], of: Sequence[int]) -> list[list[float]]:
        raise EngineError("it has no weights")

    async def pressure(self) -> None:
        return None

    async def close(self) -> None: ...


class Stage:
    """A model that is only its tokenizer, with tools, and the rollouts that are played on it."""

    def __init__(
        self, model: Path, *functions: str, max_tokens: int = 4096, chat_template: str | None = None, **settings: Any
    ) -> None:
        tools = [f"tests.tools.functions:{name}" for name in functions or ("add", "note", "say", "divide")]
        self.section = ToolsSection(functions=tools, **settings)
        self.renderer = Renderer(ModelSection(path=str(model), chat_template=chat_template))
        self.tools = load_tools(self.section)
        self.talk = ToolTalk(self.renderer, self.tools, self.section.call_format)
        self.max_tokens = max_tokens
        self.engine: Playing | None = None

    def play(
        self,
        line: Callable[[int, int], Line],
        *,
        rollouts: int = 1,
        reproducible: bool = False,
        most: int = 400,
        in_flight: int = 8,
    ) -> list[Rollout]:
        """`line`: of a rollout's index and turn. `in_flight`: rollouts that there may be at once."""
        self.engine = Playing(self.renderer, line)
        sampling = Sampling(num_generations=rollouts, max_completion_length=most, reproducible=reproducible)
        return asyncio.run(self.sampled(self.engine, sampling, in_flight=in_flight))

    async def sampled(self, engine: Engine, sampling: Sampling, *, in_flight: int = 8) -> list[Rollout]:
        """A group by any engine."""
        calling = Calling(
            talk=self.talk,
            runner=ToolRunner(self.tools, self.section, Caller(num_threads=8)),
            max_iterations=self.section.max_tool_calling_iterations,
            max_calls=self.section.max_calls_per_turn,
            max_tokens=self.max_tokens,
        )
        opening = Opening(
            messages=QUESTION,
            prompt_ids=self.talk.prompt(QUESTION),
            sampling=sampling,
            seeds=SEED,
            calling=calling,
        )
        return await played(engine, self.renderer, opening, in_flight=in_flight)


async def played(engine: Engine, renderer: Renderer, opening: Opening, *, in_flight: int = 8) -> list[Rollout]:
    """A group, in slots of its own."""
    slots = Slots(in_flight).queue(opening.sampling.num_generations)
    return await sample_group(engine, renderer, opening, slots=slots)


def script(*lines: Line) -> Callable[[int, int], Line]:
    """The same lines for every rollout."""
    return lambda index, turn: lines[turn]


def tokenizer_with(
    tokenizer: PreTrainedTokenizerFast, folder: Path, template: str, *tokens: str, end: str = "<|end|>"
) -> Path:
    """A folder with this tokenizer, another chat template and further control tokens."""
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(folder)
    other: Any = AutoTokenizer.from_pretrained(folder)
    other.add_special_tokens({"additional_special_tokens": [*other.all_special_tokens, *tokens, end]})
    other.eos_token = end
    other.chat_template = template
    other.save_pretrained(folder)
    return folder


__all__ = ["END", "QUESTION", "Playing", "PromptRefused", "Stage", "call_of", "played", "script", "tokenizer_with"]
