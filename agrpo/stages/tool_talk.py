"""How one model talks with tools: how it is shown them, how its calls are read, and how their results go on.

All of it follows from the chat template, and is found out once, by rendering a small conversation. Where the template
only ever appends, a turn's prompt is the tokens kept so far and what comes after them: nothing that the model wrote is
encoded a second time. A template that leaves earlier reasoning out once tools have answered is followed, with every
turn rendered anew; then turns fork (`records/sample.py`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from agrpo.errors import PromptError, ToolError
from agrpo.records.prompt import Message
from agrpo.stages.rendering import Renderer
from agrpo.templates import SHOWN_IN_SYSTEM
from agrpo.tools import Tool, schemas_of
from agrpo.tools.formats import OPENED, CallFormat, ReadTurn
from agrpo.tools.formats.choosing import FORMATS, format_of

logger = logging.getLogger(__name__)

EXPLAINED_FORMAT = "tagged"
"""How a model is told to write calls by `SHOWN_IN_SYSTEM`."""
_EXPLAINED = SHOWN_IN_SYSTEM.format(tools="").partition("\n")[0]
_LAST_OF_PROMPT = 32
"""Tokens among which the mark of a thought must be, if the prompt ends with one."""

_ASKED: Message = {"role": "user", "content": "Aqueduct?"}
_SAID, _THOUGHT, _TOLD, _CALLED = "Bromeliad", "Cassowary", "Dulcimer", "Epiphyte"
"""Words that no template writes."""
_CALL_ID = "call00000"
"""As long as the strictest template wants it."""
_ODD = " \n\"'\\&{[é"
"""What a template writes otherwise that trims, quotes or escapes."""


class ToolTalk:
    """The talk of one model with the tools of one run."""

    def __init__(self, renderer: Renderer, tools: Mapping[str, Tool], call_format: str | None = None) -> None:
        """Raises `ToolError` where the model cannot be told of tools, or nothing says how it writes calls."""
        self._renderer = renderer
        self._schemas = list(schemas_of(tools))
        self._around = lru_cache(maxsize=1024)(self._around_results)
        self.shown_by_template = self._shows_tools()
        self._result_role = self._role_of_results()
        self.appends = self._only_appends()
        self._warn_of_rewriting()
        self._read = self._format(call_format)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation in which the model is to answer, with its tools shown. Raises `PromptError`."""
        return self._renderer.render(self._shown(self._readable(messages)), self._template_schemas)

    def following(self, kept: Sequence[int], messages: Sequence[Message], num_results: int) -> list[int]:
        """Prompt of the next turn, after as many results as stand last in `messages`. Raises `PromptError`.

        `kept`: prompt and output of the turn that called.
        """
        if self.appends and kept[-1] in self._renderer.stop_ids:
            added = self._after_turn(messages[len(messages) - num_results :])
            if added is not None:
                return [*kept, *added]
        return self.prompt(messages)

    def read(self, ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ReadTurn:
        """What the model wrote, and what it called. `prompt_ids`: of its turn, which may begin a thought for it."""
        prompt = self._renderer.text(prompt_ids[-_LAST_OF_PROMPT:])
        return self._read(self._renderer.text(ids), thinking=prompt.rstrip().endswith(OPENED))

    @property
    def _template_schemas(self) -> list[dict[str, Any]]:
        return self._schemas if self.shown_by_template else []

    def _shown(self, messages: list[Message]) -> list[Message]:
        """With the tools in the system message, where the template does not show them."""
        if self.shown_by_template:
            return messages
        told = SHOWN_IN_SYSTEM.format(tools="\n".join(json.dumps(one, ensure_ascii=False) for one in self._schemas))
        if messages and messages[0]["role"] == "system":
            return [{**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}, *messages[1:]]
        return [{"role": "system", "content": told}, *messages]

    def _readable(self, messages: Sequence[Message]) -> list[Message]:
        """With results in a role that the template knows: those that follow one another are one message of the user."""
        if self._result_role == "tool":
            return list(messages)
        found: list[Message] = []
        for message in messages:
            if message["role"] != "tool":
                found.append({name: value for name, value in message.items() if name != "tool_calls"})
                continue
            told = f"<tool_response>\n{message['content']}\n</tool_response>"
            if found and found[-1].get("told"):
                found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{told}"}
            else:
                found.append({"role": "user", "content": told, "told": True})
        return [{name: value for name, value in message.items() if name != "told"} for message in found]

    def _after_turn(self, results: Sequence[Message]) -> list[int] | None:
        """Tokens between the one that ended the model's turn and its next turn. None: the template does not show them."""
        contents = [result["content"] for result in results]
        pieces = self._around(tuple(_told_by(result) for result in results)) if all(map(_is_plain, contents)) else None
        rest = self._rest(results) if pieces is None else _joined(pieces, contents)
        if rest is None:
            return None
        ends = [(rest.find(stop), stop_id) for stop, stop_id in self._renderer.stop_texts().items() if stop in rest]
        if not ends:
            return None
        place, stop_id = min(ends)
        # Encoded behind the stop token, as in a whole conversation: some tokenizers begin a text with a space of their own.
        first, *added = self._renderer.encode(rest[place:])
        return added if first == stop_id and not rest[:place].strip() else None

    def _rest(self, results: Sequence[Message]) -> str | None:
        """What the template writes after what a turn said. None: it cannot render the results."""
        said: Message = {"role": "assistant", "content": _SAID}
        try:
            text = self._renderer.written(self._readable([_ASKED, said, *results]), self._template_schemas)
        except PromptError:
            return None
        return text.partition(_SAID)[2]

    def _around_results(self, told_by: tuple[tuple[tuple[str, str], ...], ...]) -> list[str] | None:
        """The text around the contents of such results. None: the template does not write contents just as they are."""
        marks = [f"{_TOLD} {place}." for place in range(len(told_by))]
        rest = self._rest([_with(fields, mark) for fields, mark in zip(told_by, marks, strict=True)])
        odd = [f"{_ODD}{mark}{_ODD}" for mark in marks]
        pieces = [] if rest is None else re.split("|".join(map(re.escape, marks)), rest)
        if len(pieces) != len(marks) + 1:
            return None
        as_it_is = self._rest([_with(fields, text) for fields, text in zip(told_by, odd, strict=True)])
        return pieces if as_it_is == _joined(pieces, odd) else None

    def _shows_tools(self) -> bool:
        first = self._schemas[0]
        renamed = {**first, "function": {**first["function"], "name": _TOLD}}
        try:
            return _TOLD in self._renderer.written([_ASKED], [renamed])
        except PromptError as error:
            raise ToolError(f"{error}; take a model whose template can be given tools") from None

    def _role_of_results(self) -> str:
        """`tool`, where the template shows what such a message says; else `user`."""
        said: Message = {"role": "assistant", "content": _SAID}
        try:
            written = self._renderer.written([_ASKED, said, _result(_TOLD)], self._template_schemas)
        except PromptError:
            written = self._written_after_a_call()
        return "tool" if _TOLD in written else "user"

    def _written_after_a_call(self) -> str:
        """Some templates take a result only after the call that it answers."""
        called = _called_turn(self._schemas[0]["function"]["name"], "")
        try:
            return self._renderer.written([_ASKED, *called], self._template_schemas)
        except PromptError:
            return ""

    def _only_appends(self) -> bool:
        """Whether the text of earlier turns stays as it was when results follow (A-243)."""
        said: Message = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}"}
        later: Message = {"role": "assistant", "content": f"<think>\n{_ASKED['content']}\n</think>\n\n{_SAID}"}
        once = [_ASKED, said, _result(_TOLD)]
        try:
            last = self._renderer.written([_ASKED, said], self._template_schemas, asks=False)
            histories = [
                self._renderer.written(self._readable(messages), self._template_schemas)
                for messages in (once, [*once, later, _result(_TOLD)])
            ]
        except PromptError:
            return False
        forgets = _THOUGHT in last and not all(_THOUGHT in history for history in histories)
        return not forgets and self._after_turn([_result(_TOLD)]) is not None

    def _warn_of_rewriting(self) -> None:
        if self.appends and not self._writes_otherwise():
            return
        better = self._renderer.training_template()
        if not self.appends:
            logger.warning(
                "the model's chat template does not only append when tools answer: each turn of a rollout is rendered, read "
                "and trained anew, so that n turns cost the tokens of n conversations instead of one. %s",
                "A template that keeps what earlier turns said costs less"
                if better is None
                else f'Set model.chat_template = "{better}", which keeps what earlier turns said',
            )
        elif better is not None:
            logger.warning(
                "the model's chat template would write a turn that called otherwise than it was sampled. Its tokens are kept, "
                "so that the model learns with a history that its own template does not show. Set model.chat_template = "
                '"%s", which writes what was said and which exports carry, so that the model is served as it was trained',
                better,
            )

    def _writes_otherwise(self) -> bool:
        """Whether a turn that called lacks something of what was said in it, once its result follows."""
        called = _called_turn(self._schemas[0]["function"]["name"], f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}")
        try:
            written = self._renderer.written(self._readable([_ASKED, *called]), self._template_schemas)
        except PromptError:
            return True
        return not all(word in written for word in (_THOUGHT, _SAID, _CALLED))

    def _format(self, asked: str | None) -> CallFormat:
        """Where the template does not show tools, or does so in agrpo's words, the model was told how to write calls."""
        whole = self._renderer.written([_ASKED], self._template_schemas)
        if not self.shown_by_template or _EXPLAINED in whole:
            if asked not in (None, EXPLAINED_FORMAT):
                raise ToolError(
                    f'tools.call_format = "{asked}": the model\'s chat template shows no tools of its own, so that agrpo tells '
                    f'the model to write calls as "{EXPLAINED_FORMAT}"; set that, or leave the setting out'
                )
            return FORMATS[EXPLAINED_FORMAT]
        prefix = whole.removeprefix(self._renderer.written([_ASKED], self._schemas, asks=False))
        return format_of(self._renderer.tokenizer, asked, prefix=prefix, schemas=self._schemas)


def _told_by(result: Message) -> tuple[tuple[str, str], ...]:
    """All of a result but its content: its role, its call."""
    return tuple((name, value) for name, value in result.items() if name != "content")


def _with(fields: tuple[tuple[str, str], ...], content: str) -> Message:
    return {**dict(fields), "content": content}


def _is_plain(content: str) -> bool:
    """Whether no template looks at such a content: it has neither space around it nor anything like a control token."""
    return bool(content) and content == content.strip() and "<" not in content


def _joined(pieces: Sequence[str], contents: Sequence[str]) -> str:
    return "".join(chain.from_iterable(zip(pieces, [*contents, ""], strict=True)))


def _result(content: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": _CALL_ID}


def _called_turn(name: str, content: str) -> list[Message]:
    """A turn that called, and the result."""
    call = {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": {"of": _CALLED}}}
    said: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [said, {**_result(_TOLD), "name": name}]
