"""A model's tokenizer and chat template: messages to tokens, tokens to text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from agrpo.config import ModelSection
from agrpo.errors import ModelError, PromptError
from agrpo.records.prompt import Message
from agrpo.templates import template_at
from agrpo.templates.recognising import Probe, training_template_of

WORD_JOINER = "\u2060"


class Renderer:
    """Everything of a model that turns messages into tokens and back, without its weights."""

    def __init__(self, model: ModelSection) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"no tokenizer in {model.path}: {str(error).splitlines()[0]}") from None
        self._own_templates = [_own_template(self.tokenizer, tools) for tools in (None, [])]
        """Without tools and with them: some tokenizers have one for each."""
        if model.chat_template is not None:
            self.tokenizer.chat_template = template_at(model.chat_template)
        if self.tokenizer.chat_template is None:
            raise ModelError(
                f"the tokenizer of {model.path} has no chat template, so messages cannot be rendered; "
                "use an instruct model, save a chat template with the tokenizer, or set model.chat_template"
            )
        self._control = _pattern_of(self.tokenizer)
        self._keywords = model.chat_template_kwargs
        self.stop_ids = frozenset(_stop_ids(model, self.tokenizer))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation in which the model is to answer. Raises `PromptError`."""
        return self.render(messages)

    def harmless(self, text: str) -> str:
        """Text of others in which nothing stands for a control token: it must not end a turn or speak for the model."""
        return self._control.sub(lambda found: f"{found[0][0]}{WORD_JOINER}{found[0][1:]}", text)

    def render(self, messages: Sequence[Message], schemas: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Prompt tokens, ending where the model is to answer. Raises `PromptError` for what the template cannot take.

        `schemas`: tools that the template shows the model.
        """
        rendered = self._applied(messages, schemas, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(token) for token in rendered]

    def written(self, messages: Sequence[Message], schemas: Sequence[dict[str, Any]] = (), *, asks: bool = True) -> str:
        """The same as text; without `asks` it ends with the last message. Raises `PromptError`."""
        return self._applied(messages, schemas, add_generation_prompt=asks, tokenize=False)

    def training_template(self) -> str | None:
        """The template for training of the family that the tokenizer's own is of; None where that is not known."""
        return training_template_of(self._probed) if all(self._own_templates) else None

    def stop_texts(self) -> dict[str, int]:
        """The tokens that end a turn, by their text."""
        ids = sorted(self.stop_ids)
        return {text: stop_id for stop_id in ids if (text := self.tokenizer.convert_ids_to_tokens(stop_id))}

    def encode(self, text: str) -> list[int]:
        """Tokens of text that a template has written."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def text(self, ids: Sequence[int]) -> str:
        """What the model wrote, without the token that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        # An array: of a list the tokenizer looks at the type of every token.
        return self.tokenizer.decode(np.array(kept, dtype=np.int64), skip_special_tokens=False)

    def _probed(self, probe: Probe, template: str | None) -> str | None:
        how: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "date_string": "26 Jul 2024"}
        if probe.schemas:
            how["tools"] = probe.schemas
        own = self._own_templates[1 if probe.schemas else 0]
        try:
            return self.tokenizer.apply_chat_template(list(probe.messages), chat_template=template or own, **how)
        except (TemplateError, TypeError, ValueError):
            return None

    def _applied(self, messages: Sequence[Message], schemas: Sequence[dict[str, Any]], **how: Any) -> Any:
        tools = {"tools": list(schemas)} if schemas else {}
        try:
            return self.tokenizer.apply_chat_template(list(messages), **tools, **how, **self._keywords)
        except (TemplateError, TypeError, ValueError) as error:
            raise PromptError(f"the model's chat template cannot render this prompt: {error}") from None


def _own_template(tokenizer: Any, tools: list[Any] | None) -> str | None:
    """The one that the tokenizer itself takes. None: it has none, or several of which none is the default."""
    try:
        return tokenizer.get_chat_template(tools=tools)
    except (ValueError, NotImplementedError):
        return None


def _pattern_of(tokenizer: Any) -> re.Pattern[str]:
    """Text that the tokenizer reads as one token, whatever stands around it."""
    added = sorted((text for text in tokenizer.get_added_vocab() if text.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, added)) or "(?!)")


def _stop_ids(model: ModelSection, tokenizer: Any) -> set[int]:
    """The generation config's end tokens and the tokenizer's."""
    from transformers import GenerationConfig

    config: Any = GenerationConfig
    try:
        declared = config.from_pretrained(model.path, revision=model.revision).eos_token_id
    except OSError:
        declared = None
    ids = set(declared if isinstance(declared, list) else [] if declared is None else [declared])
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ModelError(f"{model.path} names no end-of-turn token in its generation config or tokenizer")
    return ids
