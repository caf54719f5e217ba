"""What stands around the rollouts of a run: functions that all of them may call, and the environments in which they act."""

from __future__ import annotations

from dataclasses import replace

from agrpo.config import RunConfig
from agrpo.environments import ONLY, load_environments
from agrpo.environments.pool import Pool
from agrpo.errors import EnvironmentFault, PromptError
from agrpo.records.prompt import Message, Prompt
from agrpo.registry import nearest
from agrpo.stages.conversation import Calling, Opening
from agrpo.stages.rendering import Renderer
from agrpo.stages.tool_talk import ToolTalk
from agrpo.tools import Tool, load_tools
from agrpo.tools.caller import Caller
from agrpo.tools.calling import ToolRunner


class Surroundings:
    """Of one generator. All its rollouts share threads for what does not await."""

    def __init__(self, config: RunConfig, renderer: Renderer) -> None:
        """Raises `ToolError` or `EnvironmentFault`."""
        self._config = config
        self._renderer = renderer
        tools, kinds = load_tools(config.tools), load_environments(config.environments)
        clock_decides = not config.sampling.reproducible
        self.caller = Caller(num_threads=config.asynchronous.max_concurrent_rollouts)
        self._runner = ToolRunner(tools, config.tools, self.caller, clock_decides=clock_decides)
        self._alone = self._calling(tools)
        self._pools = {
            name: Pool(kind, self.caller, seconds=config.environments.timeout_seconds, clock_decides=clock_decides)
            for name, kind in kinds.items()
        }
        self._callings: dict[str, Calling | None] = {}
        for name, kind in kinds.items():
            if shared := sorted(tools.keys() & kind.tools.keys()):
                raise EnvironmentFault(
                    f'"{shared[0]}" is a function of tools.functions and a method of {kind.class_name}, and the model could not '
                    "tell them apart; rename one"
                )
            self._callings[name] = self._calling({**tools, **kind.tools})

    def opening(self, prompt: Prompt, ticket: int) -> Opening:
        """How the rollouts of a group begin. Raises `PromptError`."""
        sampling, seeds = self._config.sampling, (self._config.run.seed, ticket)
        if self._config.environments.are_given:
            name = self._picked(prompt)
            return Opening(
                messages=prompt.messages,
                sampling=sampling,
                seeds=seeds,
                calling=self._callings[name],
                pool=self._pools[name],
                columns=prompt.facts,
            )
        if not prompt.messages:
            raise PromptError(
                f'row {prompt.row_index} has no "prompt" column; its columns are: {", ".join(prompt.facts)}. Rename the one that '
                "holds the conversation, a list of messages"
            )
        talk = self._alone.talk if self._alone else self._renderer
        return Opening(
            messages=prompt.messages,
            prompt_ids=talk.prompt(prompt.messages),
            sampling=sampling,
            seeds=seeds,
            calling=self._alone,
        )

    def asking(self, opening: Opening, messages: list[Message]) -> Opening:
        """The same with other messages, which a hook has put in the place of the row's. Raises `PromptError`."""
        if opening.pool is not None:
            return replace(opening, messages=messages, is_own=True)
        talk = opening.calling.talk if opening.calling else self._renderer
        return replace(opening, messages=messages, prompt_ids=talk.prompt(messages), is_own=True)

    def _calling(self, tools: dict[str, Tool]) -> Calling | None:
        """None: there is nothing to call."""
        if not tools:
            return None
        return Calling(
            talk=ToolTalk(self._renderer, tools, self._config.tools.call_format),
            runner=self._runner,
            max_iterations=self._config.tools.max_tool_calling_iterations,
            max_calls=self._config.tools.max_calls_per_turn,
            max_tokens=self._config.step.micro_tokens,
        )

    def _picked(self, prompt: Prompt) -> str:
        """Name of the environment that the prompt is asked in (A-258)."""
        known, name = sorted(self._pools), prompt.environment
        if self._config.environments.factory is not None and name is None:
            return ONLY
        if name is None:
            raise PromptError(f"row {prompt.row_index} names no environment; known: {', '.join(known)}")
        if name not in self._config.environments.factories:
            told = nearest(name, known) if known != [ONLY] else "the run has a single one, which rows do not name"
            raise PromptError(f'row {prompt.row_index} names the environment "{name}"; {told}')
        return name
