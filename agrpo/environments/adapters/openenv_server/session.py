"""One rollout's episode on an OpenEnv server: a session over a WebSocket, begun by `reset`, acted in, paid at its end.

An episode lives in its session. Where that is lost in its midst, nothing of the episode is left: what the policy does then
fails, and it is paid nothing. The next `reset` begins another session, and waits for a server that is on its way back.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agrpo.environments.adapters.openenv_server.world import PAUSE_SECONDS, Server

BEYOND_ANY_DEADLINE = 86400.0
"""Seconds that the client waits for an answer: agrpo's own deadlines end a call before."""
TAKEN_IN = ("EXECUTION_ERROR", "VALIDATION_ERROR")
"""Errors after which the session goes on: the action was one that the environment refuses."""
UNDER_WAY = "the step before has not come back"
"""Of one that is being given up, too: its answer may still be on its way."""
FULL = "CAPACITY_REACHED"


class Session:
    """One instance of the environment, for one rollout at a time. Its subclasses have the server's actions as methods."""

    def __init__(self, server: Server, *, show: str | None, reward: str) -> None:
        self._server = server
        self._show = show
        self._reward = reward
        self._client: Any = None
        self._socket: Any = None
        """Of the episode. The client opens another one by itself, and there nothing was reset."""
        self._over: str | None = "it was not reset"
        """Why nothing more can be done in the episode."""
        self._lost: str | None = None
        self._num_steps = 0
        self._rewards: list[float] = []

    async def reset(self, **columns: Any) -> str | None:
        """Begin an episode with the row's columns; what the server shows, None where that is nothing.

        Without a column `seed` the row's `number` is the seed, which all rollouts of a group have in common. Raises
        `ConnectionError` where the server was away for too long.
        """
        self._over = self._lost = None
        self._num_steps, self._rewards = 0, []
        seed = {"seed": columns["number"]} if "number" in columns and "seed" not in columns else {}
        result = await self._begun({**columns, **seed})
        if result.done:
            self._over = "the episode was over when it began"
        try:
            return self._told(result.observation) or None
        except RuntimeError:
            self._drop()  # nobody uses this instance again, and its session would be held
            raise

    async def get_reward(self) -> float:
        """What the steps paid. Raises `RuntimeError` where that is not known."""
        if self._lost is not None or self._over == UNDER_WAY:
            raise RuntimeError(self._lost or self._over)
        if self._num_steps and not self._rewards:
            raise RuntimeError(f"{self._server.url} gave no reward in {self._num_steps} steps")
        if not self._rewards:
            return 0.0
        return sum(self._rewards) if self._reward == "sum" else self._rewards[-1]

    async def _begun(self, columns: Mapping[str, Any]) -> Any:
        until = time.monotonic() + self._server.connect_seconds
        while True:
            try:
                result = await self._connected().reset(**columns)
                self._socket = self._client._ws
                return result
            except BaseException as error:
                self._drop()
                if not _may_pass(error):
                    raise
                if time.monotonic() + PAUSE_SECONDS >= until:
                    raise ConnectionError(self._away(error)) from error
            await asyncio.sleep(PAUSE_SECONDS)

    def _away(self, error: BaseException) -> str:
        told = (
            f"{self._server.url} gave no session within {self._server.connect_seconds:g} s (connect_seconds): {error}"
        )
        if FULL not in str(error):
            return f"{told}. See that the server runs"
        return (
            f"{told}. Each rollout that runs needs a session for each environment there, async.max_concurrent_rollouts × "
            "workers.generators of them: raise the server's max_concurrent_envs, or lower async.max_concurrent_rollouts to what "
            "it has for each generator"
        )

    def _connected(self) -> Any:
        if self._client is None:
            from openenv.core.generic_client import GenericEnvClient  # pyright: ignore[reportMissingImports]

            self._client = GenericEnvClient(
                base_url=self._server.url,
                connect_timeout_s=self._server.connect_seconds,
                message_timeout_s=BEYOND_ANY_DEADLINE,
                mode="simulation",
                headers=dict(self._server.headers) or None,
            )
        return self._client

    async def _act(self, payload: Mapping[str, Any]) -> str:
        """Take an action; what the policy reads. Raises `RuntimeError` with why nothing came of it."""
        if self._over is not None:
            raise RuntimeError(f"nothing more can be done: {self._over}")
        if self._is_cut:
            self._lose("the connection was closed")
            raise RuntimeError(self._lost)
        self._over = UNDER_WAY
        try:
            result = await self._client.step(dict(payload))
        except Exception as error:
            if any(code in str(error) for code in TAKEN_IN):
                self._over = None
                raise
            self._lose(f"{type(error).__name__}: {error}")
            raise RuntimeError(self._lost) from error
        except BaseException:  # it was cancelled: what the server answers later belongs to nobody
            self._lose("a step did not come back in time")
            raise
        self._over = None
        self._num_steps += 1
        if result.reward is not None:
            self._rewards.append(float(result.reward))
        if result.done:
            self._over = "the episode is over"
        told = self._told(result.observation)
        if result.done:
            told = f"{told}\nThe episode is over." if told else "The episode is over."
        return told

    @property
    def _is_cut(self) -> bool:
        from websockets.protocol import State

        return self._client._ws is not self._socket or self._socket.state is not State.OPEN

    def _lose(self, why: str) -> None:
        self._lost = self._over = f"the session on {self._server.url} was lost: {why}"
        self._drop()

    def _drop(self) -> None:
        """Leave the session; another one is begun by the next reset."""
        client, self._client = self._client, None
        if client is not None:
            task = asyncio.ensure_future(_closed(client))
            _CLOSING.add(task)
            task.add_done_callback(_CLOSING.discard)

    def _told(self, observation: Mapping[str, Any]) -> str:
        """An observation as text. Raises `RuntimeError` with what a tool of the server raised."""
        error: Any = observation.get("error")
        if error and "tool_name" in observation:
            raise RuntimeError(str(error.get("message", error) if isinstance(error, dict) else error))
        if self._show is not None:
            if self._show not in observation:
                there = ", ".join(observation) or "nothing"
                raise RuntimeError(f'the observation has no "{self._show}" (settings.show); it has {there}')
            return _text(observation[self._show])
        fields = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
        if "tool_name" in fields and "result" in fields:
            return _text(_result(fields["result"]))
        only = [*fields.values()]
        return only[0] if len(only) == 1 and isinstance(only[0], str) else _text(fields) if fields else ""


_CLOSING: set[asyncio.Future[None]] = set()
"""Sessions on their way to their end; a task that nobody holds may be collected."""


async def _closed(client: Any) -> None:
    with suppress(Exception):
        await client.close()


def _may_pass(error: BaseException) -> bool:
    """Whether the server may be on its way back, or have a session again soon."""
    from websockets.exceptions import WebSocketException

    return isinstance(error, OSError | WebSocketException) or (isinstance(error, RuntimeError) and FULL in str(error))


def _result(result: Any) -> Any:
    """What a tool returned, out of the envelope of MCP."""
    if not isinstance(result, dict):
        return result
    if result.get("data") is not None:
        return result["data"]
    texts = [part["text"] for part in result.get("content") or [] if isinstance(part, dict) and "text" in part]
    return "\n".join(texts) if texts else result


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
