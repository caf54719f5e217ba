"""What a request's body may say, and how a real server refuses what it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tests.vllm_like.drawing import Params
from tests.vllm_like.options import Options

UNSUPPORTED = (
    "stop",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "prompt_logprobs",
    "structured_outputs",
    "min_tokens",
)
"""A true answer to these is not built here: they are refused loudly instead of ignored."""


class Refusal(Exception):
    """An answer of its own status."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", param: str | None = None, code: int = 400
    ) -> None:
        super().__init__(message)
        self.kind, self.param, self.code = kind, param, code


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A completion as it was asked for."""

    request_id: str
    prompt: list[int]
    params: list[Params]
    """One for each of `n`."""
    adapter: str | None
    logprobs: int | None
    prompt_ids_too: bool = False
    as_token_ids: bool = False
    ids_too: bool = True


class Reader:
    """Reads bodies for one server."""

    def __init__(
        self, options: Options, name: str, vocabulary: int, max_model_len: int, adapters: Mapping[str, object]
    ):
        self.options = options
        self.name = name
        self.vocabulary = vocabulary
        self.max_model_len = max_model_len
        self.adapters = adapters

    def generate(self, body: Any, request_id: str) -> Asked:
        """`/inference/v1/generate`."""
        missing = [name for name in ("token_ids", "sampling_params") if name not in body]
        if missing:
            raise invalid([("missing", f"body.{name}", "Field required") for name in missing])
        prompt, told = body["token_ids"], body["sampling_params"]
        if not prompt:
            raise invalid([("too_short", "body.token_ids", "List should have at least 1 item after validation, not 0")])
        if any(token < 0 for token in prompt):
            raise invalid(
                [("value_error", "body.token_ids", "Value error, token_ids must not contain negative values")]
            )
        _check_stream(body)
        most = told.get("max_tokens", self.max_model_len)
        params = self._params(told, most)
        adapter = self._adapter(body.get("model"))
        self._check_length(prompt)
        self._check_vocabulary(prompt, params, told)
        return Asked(
            request_id=f"generate-tokens-{body.get('request_id', request_id)}",
            prompt=prompt,
            params=_each(params, told.get("n", 1)),
            adapter=adapter,
            logprobs=told.get("logprobs"),
            prompt_ids_too=bool(body.get("return_token_ids")),
        )

    def completions(self, body: Any, request_id: str) -> Asked:
        """`/v1/completions`."""
        adapter = self._adapter(body.get("model"))
        prompt = body.get("prompt")
        if prompt is None:
            raise invalid(
                [("value_error", "body", "Either prompt or prompt_embeds must be provided and non-empty.")], "prompt"
            )
        if not prompt:
            raise Refusal("You must pass at least one prompt")
        _check_stream(body)
        length, limit = len(prompt), self.max_model_len
        if length > limit:
            raise Refusal(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {length} input tokens, "
                "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={length})",
                param="input_tokens",
            )
        asked = body.get("max_tokens")
        params = self._params(body, min(16 if asked is None else asked, limit - length))
        self._check_vocabulary(prompt, params, body)
        return Asked(
            request_id=f"cmpl-{body.get('request_id', request_id)}",
            prompt=prompt,
            params=_each(params, body.get("n", 1)),
            adapter=adapter,
            logprobs=body.get("logprobs"),
            prompt_ids_too=bool(body.get("return_token_ids")),
            ids_too=bool(body.get("return_token_ids")),
            as_token_ids=bool(body.get("return_tokens_as_token_ids")),
        )

    def _params(self, told: Mapping[str, Any], most: int) -> Params:
        for name in UNSUPPORTED:
            if told.get(name):
                raise Refusal(f"{name} is not built into this server", kind="NotImplementedError", code=501)
        if (temperature := told.get("temperature", 1.0)) < 0:
            raise _out_of("temperature", f"temperature must be non-negative, got {temperature}.", temperature)
        if not 0 < (top_p := told.get("top_p", 1.0)) <= 1:
            raise _out_of("top_p", f"top_p must be in (0, 1], got {top_p}.", top_p)
        if most < 1:
            raise _out_of("max_tokens", f"max_tokens must be at least 1, got {most}.", most)
        chosen = {each.name for each in fields(Params)} - {"max_tokens", "stop_token_ids"}
        values = {name: value for name, value in told.items() if name in chosen and value is not None}
        return Params(max_tokens=most, stop_token_ids=frozenset(told.get("stop_token_ids") or ()), **values)

    def _adapter(self, model: str | None) -> str | None:
        if model is None or model == self.name:
            return None
        if model in self.adapters:
            return model
        raise Refusal(
            f"The model `{model}` does not exist. Valid aliases: {self.name}.",
            kind="NotFoundError",
            param="model",
            code=404,
        )

    def _check_length(self, prompt: list[int]) -> None:
        length, limit = len(prompt), self.max_model_len
        if length > limit:
            raise Refusal(
                f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. Make sure that "
                "`max_model_len` is no smaller than the number of text tokens."
            )
        if length == limit:
            raise Refusal(
                f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than "
                f"the maximum model length of {limit}. Make sure that `max_model_len` is no smaller than the number of text "
                "tokens (prompt + requested output tokens)."
            )

    def _check_vocabulary(self, prompt: list[int], params: Params, told: Mapping[str, Any]) -> None:
        if max(prompt) >= self.vocabulary:
            raise Refusal(f"Token id {max(prompt)} is out of vocabulary")
        outside = [token for token in told.get("stop_token_ids") or () if not 0 <= token < self.vocabulary]
        if outside:
            raise _out_of(
                "stop_token_ids",
                f"token_id(s) {outside} in stop_token_ids contain out-of-vocab token ids. Vocabulary size: {self.vocabulary}",
                outside,
            )
        wanted = self.vocabulary if params.logprobs == -1 else params.logprobs or 0
        if wanted > self.options.max_logprobs:
            raise _out_of(
                "logprobs",
                f"Requested sample logprobs of {wanted}, which is greater than max allowed: {self.options.max_logprobs}",
                wanted,
            )
        if self.options.return_sampling_mask and params.temperature <= 0:
            raise Refusal("sampling distribution replay requires temperature > 0")
        if self.options.return_sampling_mask and params.top_k <= 0:
            raise Refusal(
                "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, and "
                "avoid potential OOMs"
            )


def invalid(errors: list[tuple[str, str, str]], param: str | None = None) -> Refusal:
    """A body that has not the schema: (type, place, message) of each error."""
    lines = "\n".join(f"  {{'type': {kind!r}, 'loc': {place!r}, 'msg': {text!r}}}" for kind, place, text in errors)
    label = "error" if len(errors) == 1 else "errors"
    return Refusal(f"{len(errors)} validation {label}:\n{lines}", kind="Bad Request", param=param or errors[0][1])


def _each(params: Params, number: int) -> list[Params]:
    """The seed of choice i is the request's plus i."""
    values = {each.name: getattr(params, each.name) for each in fields(Params)}
    return [
        Params(**values | {"seed": None if params.seed is None else params.seed + index}) for index in range(number)
    ]


def _out_of(param: str, message: str, value: object) -> Refusal:
    return Refusal(f"{message} (parameter={param}, value={value})", param=param)


def _check_stream(body: Mapping[str, Any]) -> None:
    if body.get("stream"):
        raise Refusal("streams are not built into this server", kind="NotImplementedError", code=501)
