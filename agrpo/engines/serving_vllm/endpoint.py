"""One server's HTTP: JSON there and back, and in our words what went wrong.

Three things can go wrong, and each is met differently. The server is not there (refused, reset, silent, a 5xx, half an
answer): asked again, it may be. It refuses (4xx): asked again, it would refuse again. It is no vLLM at all.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import aiohttp

from agrpo.errors import EngineError, EngineLost

LONGEST_TEXT = 500
"""Characters of a server's answer that an error repeats."""
_NO_KEY = "the server asks for a key: name the environment variable that holds it in engine.api_key_variable"
_OTHER_KEY = (
    "the server takes another key than it was sent: put the one it was started with into the environment variable that "
    "engine.api_key_variable names"
)


class Unreachable(EngineError):
    """No answer came, or none that is whole."""

    def __init__(self, message: str, *, silent: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy
        """It asked to be asked later."""
        self.silent = silent
        """The server may be at work: it took the question, and was not heard of in time."""


class Refused(EngineError):
    """The server understood, and will not."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """A server by its root URL. Its connections are its own; close it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, path: str, seconds: float) -> Any:
        """The JSON that a GET answers with. Raises `Unreachable`, `Refused` or `EngineLost`."""
        return _json(await self._ask("GET", path, None, seconds), f"GET {self.url}{path}")

    async def text(self, path: str, seconds: float) -> str:
        """The text that a GET answers with."""
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: Any, seconds: float) -> Any:
        """The JSON that a POST of JSON answers with."""
        return _json(await self._ask("POST", path, body, seconds), f"POST {self.url}{path}")

    async def send(self, path: str, body: Any, seconds: float) -> str:
        """What a POST of JSON answers with, whatever it is."""
        return await self._ask("POST", path, body, seconds)

    async def close(self) -> None:
        """Nothing is asked after it."""
        self._closed = True
        await self.reconnect()

    async def reconnect(self) -> None:
        """Ask on new connections from now on: a server that failed may have dropped the old ones without a word."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, method: str, path: str, body: Any, seconds: float) -> str:
        what = f"{method} {self.url}{path}"
        try:
            async with asyncio.timeout(seconds):
                async with self._connected().request(method, f"{self.url}{path}", json=body) as answer:
                    text = await answer.text()
        except TimeoutError:
            raise Unreachable(f"{what}: no answer within {seconds:g} s", silent=True) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unreachable(f"{what}: its connection was closed while it was made") from None
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"{what}: {type(error).__name__}: {error}") from None
        return _checked(what, answer.status, answer.content_type, text, has_key=bool(self._headers))

    def _connected(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineError(f"the connections to {self.url} were closed")
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


def _checked(what: str, status: int, content_type: str, text: str, *, has_key: bool) -> str:
    """The text of an answer that is one."""
    if status < 400:
        if content_type == "text/html":
            raise EngineLost(
                f"{what} answered with a web page ({_short(text)}); what runs there is no vLLM server: mend engine.base_urls"
            )
        return text
    told = f"{what} answered {status}: {'a web page' if content_type == 'text/html' else _short(_message(text))}"
    if status in (401, 403) and "scale" not in text.lower():
        raise EngineLost(f"{told}; {_OTHER_KEY if has_key else _NO_KEY}")
    if status >= 500 or status in (408, 425, 429):
        raise Unreachable(told, busy=status in (408, 425, 429, 503))
    raise Refused(told, status)


def _message(text: str) -> str:
    """A server's own words, out of the JSON it wraps them in."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    error = cast("dict[str, Any]", document).get("error", document) if isinstance(document, dict) else document
    return str(cast("dict[str, Any]", error).get("message", error)) if isinstance(error, dict) else str(error)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise Unreachable(f"{what} answered with half a JSON or none: {_short(text)}") from None


def _short(text: str) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= LONGEST_TEXT else f"{folded[:LONGEST_TEXT]}…"
