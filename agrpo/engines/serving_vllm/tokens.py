"""Whether a server means the same by a token as the learner does."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from agrpo.config import ModelSection
from agrpo.engines.serving_vllm.endpoint import Endpoint, Refused
from agrpo.engines.serving_vllm.facts import ASK_SECONDS

TEXT = "2 + 2 = 4; Größe,\n\tЖ 数 🙂 x_1 <tag> don't"
"""Held against the server's tokenizer: digits, spaces, letters of three scripts, an emoji."""


class Vocabulary:
    """The tokens of the learner's model and its tokenizer, loaded when they are first needed."""

    def __init__(self, model: ModelSection) -> None:
        self._model = model

    async def problems(self, endpoint: Endpoint, served_model: str) -> list[str]:
        """A sentence where the server makes other tokens of a text. A server that tells none is believed."""
        body = {"model": served_model, "prompt": TEXT, "add_special_tokens": False}
        try:
            told: Any = await endpoint.post("/tokenize", body, ASK_SECONDS)
        except Refused:
            return []
        found, expected = told.get("tokens"), self.ids
        if found == expected:
            return []
        return [
            f"{endpoint.url}: its tokenizer makes other tokens of {TEXT!r}: {found}, model.path = {self._model.path} makes "
            f"{expected}; start it with --tokenizer {self._model.path}"
        ]

    @cached_property
    def ids(self) -> list[int]:
        """The learner's tokens of `TEXT`."""
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(
            self._model.path, revision=self._model.revision, trust_remote_code=self._model.trust_remote_code
        )
        return [int(token) for token in tokenizer.encode(TEXT, add_special_tokens=False)]

    @cached_property
    def size(self) -> int:
        """How many tokens the model has an embedding for."""
        from transformers import AutoConfig

        config: Any = AutoConfig.from_pretrained(
            self._model.path, revision=self._model.revision, trust_remote_code=self._model.trust_remote_code
        )
        return int(config.get_text_config().vocab_size)
