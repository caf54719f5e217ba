"""Posting JSON to a service until it answers, within a deadline."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.errors import RewardError

if TYPE_CHECKING:
    import aiohttp

LONGEST_ANSWER_BYTES = 2**24
LONGEST_PAUSE_SECONDS = 30.0
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Answers of a service that may well answer otherwise in a moment."""
_QUOTED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to go on asking."""

    request_seconds: float
    deadline_seconds: float
    """Of all requests and the pauses between them."""
    max_retries: int
    backoff_seconds: float
    """Before the first retry; twice as long before each further one, unless the service names its own (`Retry-After`)."""


class _Passing(Exception):
    """A failure that may not happen again. `pause_seconds`: what the service asked for."""

    def __init__(self, message: str, pause_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds


async def post(url: str, body: bytes, headers: dict[str, str], patience: Patience) -> Any:
    """The JSON that the service answers with. Raises `RewardError` that says what came instead, and how often."""
    import aiohttp

    deadline = time.monotonic() + patience.deadline_seconds
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as session:
        for tried in range(patience.max_retries + 1):
            try:
                return await _once(session, url, body, min(patience.request_seconds, deadline - time.monotonic()))
            except _Passing as failure:
                pause = max(patience.backoff_seconds * 2**tried, min(failure.pause_seconds, LONGEST_PAUSE_SECONDS))
                if tried == patience.max_retries or time.monotonic() + pause >= deadline:
                    raise RewardError(f"{failure} (asked {tried + 1} times)") from None
            await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


async def _once(session: aiohttp.ClientSession, url: str, body: bytes, seconds: float) -> Any:
    from aiohttp import ClientError, InvalidURL

    try:
        async with asyncio.timeout(seconds):
            async with session.post(url, data=body, allow_redirects=False) as answer:
                text = await _read(answer, url)
                return _checked(answer, text, url)
    except TimeoutError:
        raise _Passing(f"{url} gave no answer within {seconds:.3g} s") from None
    except InvalidURL:
        raise RewardError(f"{url} is no URL that can be asked") from None
    except (ClientError, OSError) as error:
        raise _Passing(f"{url} cannot be reached: {type(error).__name__}: {error}") from None
    except ValueError as error:  # such as a host that has no name in the system's tables
        raise RewardError(f"{url} is no URL that can be asked: {error}") from None


async def _read(answer: aiohttp.ClientResponse, url: str) -> bytes:
    text = b""
    async for piece in answer.content.iter_any():
        text += piece
        if len(text) > LONGEST_ANSWER_BYTES:
            raise RewardError(f"{url} answered with more than {LONGEST_ANSWER_BYTES} bytes; expected a list of rewards")
    return text


def _checked(answer: aiohttp.ClientResponse, text: bytes, url: str) -> Any:
    if answer.status in PASSING:
        pause = _seconds(answer.headers.get("Retry-After", ""))
        raise _Passing(f"{url} answered {answer.status}: {_quoted(text)}", pause)
    if 300 <= answer.status < 400:
        place = answer.headers.get("Location", "nowhere")
        raise RewardError(f"{url} answered {answer.status} and points to {place}; give that URL if it is the right one")
    if answer.status in (401, 403):
        raise RewardError(
            f"{url} answered {answer.status}: {_quoted(text)}; name the environment variable with its key in api_key_variable"
        )
    if answer.status != 200:
        raise RewardError(f"{url} answered {answer.status}: {_quoted(text)}; expected 200")
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RewardError(f"{url} answered with what is no JSON ({error}): {_quoted(text)}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _quoted(text: bytes) -> str:
    said = " ".join(text[: 4 * _QUOTED].decode(errors="replace").split())
    return repr(said if len(said) <= _QUOTED else f"{said[:_QUOTED]}…")
