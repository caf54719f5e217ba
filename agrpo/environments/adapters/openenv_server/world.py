"""What an OpenEnv server offers: its name, and its actions as methods with the server's own descriptions.

A server says in `/schema` what an action is. Where that is a call of an MCP tool, the tools are listed by `/mcp`, and each is
a method; else there is one method, `step`, with the fields of the action as arguments.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import Any
from urllib.parse import urlsplit

from agrpo.errors import EnvironmentFault

KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
"""Python's types by JSON's. What is narrower, the server checks itself."""
OWN = ("reset", "get_reward")
PAUSE_SECONDS = 0.25
"""Between two attempts to connect."""
AWAY = (502, 503, 504)
"""What a proxy answers for a server that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it is, and how it is asked."""

    url: str
    connect_seconds: float
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, so that no proxy lies between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that a policy can do there."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments: an object."""
    is_call: bool
    """Whether it is a call of an MCP tool."""

    def payload(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the server is sent for it."""
        if not self.is_call:
            return dict(arguments)
        return {"type": "call_tool", "tool_name": self.name, "arguments": dict(arguments)}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A server's environment."""

    name: str
    description: str
    actions: tuple[Action, ...]

    def methods(self) -> dict[str, Callable[..., Any]]:
        """By name, for a class of sessions."""
        return {action.name: _method(action) for action in self.actions}


def world_at(server: Server) -> World:
    """Ask the server, again and again until `connect_seconds` are over where it is on its way back.

    Raises `EnvironmentFault` where it cannot be reached, is no OpenEnv server, or offers what fits no tool.
    """
    import httpx

    until = time.monotonic() + server.connect_seconds
    while True:
        try:
            about, actions = _asked(server)
            break
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not _may_pass(error) or time.monotonic() + PAUSE_SECONDS >= until:
                raise _no_server(server, f"{type(error).__name__}: {error}") from error
        time.sleep(PAUSE_SECONDS)
    _refuse_names(server, actions)
    name = re.sub(r"\W", "_", str(about.get("name") or "OpenEnv"))
    description = str(about.get("description") or f"The environment at {server.url}.")
    return World(
        name=name if name[:1].isalpha() else f"OpenEnv_{name}", description=description, actions=tuple(actions)
    )


def _asked(server: Server) -> tuple[dict[str, Any], list[Action]]:
    """What it says of itself, and its actions."""
    import httpx

    with httpx.Client(
        base_url=server.url,
        timeout=server.connect_seconds,
        headers=dict(server.headers),
        trust_env=not server.is_local,
    ) as client:
        about = _json(client.get("/metadata"))
        action = _json(client.get("/schema")).get("action")
        if not isinstance(action, dict):
            raise _no_server(server, f"/schema has no action: {str(action)[:80]}")
        return about, _actions(client, action)


def _may_pass(error: Exception) -> bool:
    """Whether the server may be on its way back."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in AWAY
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)


def _refuse_names(server: Server, actions: list[Action]) -> None:
    refused = next((one.name for one in actions if one.name in OWN or one.name.startswith("_")), None)
    if refused is not None or not actions:
        told = f'has a tool "{refused}", a name that is agrpo\'s own' if refused else "offers no action"
        raise EnvironmentFault(f"openenv: {server.url} {told}; an environment needs others")
    for action in actions:
        for name in action.parameters["properties"]:
            if not name.isidentifier() or iskeyword(name) or name == "self":
                raise EnvironmentFault(
                    f'openenv: {server.url}: the tool "{action.name}" takes an argument "{name}"; expected names that arguments '
                    "of Python's methods may have: rename it on the server"
                )


def _no_server(server: Server, why: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"openenv: {server.url} cannot be asked ({why}); expected an OpenEnv server there (settings.url): start it, and see that "
        f"{server.url}/schema answers"
    )


def _json(response: Any) -> dict[str, Any]:
    response.raise_for_status()
    try:
        document = response.json()
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def _actions(client: Any, schema: Mapping[str, Any]) -> list[Action]:
    if not {"tool_name", "arguments"} <= {*schema.get("properties", {})}:
        about = str(schema.get("description") or "Act.")
        return [Action(name="step", description=about, parameters=_arguments(schema), is_call=False)]
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    listed: list[dict[str, Any]] = (_json(client.post("/mcp", json=call)).get("result") or {}).get("tools") or []
    return [
        Action(
            name=str(tool["name"]),
            description=str(tool.get("description") or tool["name"]),
            parameters=_arguments(tool.get("input_schema") or tool.get("inputSchema") or {}),
            is_call=True,
        )
        for tool in listed
    ]


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of arguments, without what is not the policy's to say."""
    properties = {
        name: {key: value for key, value in told.items() if key != "title"}
        for name, told in schema.get("properties", {}).items()
        if name != "metadata"
    }
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    required = [name for name in schema.get("required", []) if name in properties]
    return {"type": "object", "properties": properties, "required": required, **shared}


def _method(action: Action) -> Callable[..., Any]:
    """An async method of a session that takes the action, described by the server's own schema."""

    async def act(self: Any, **arguments: Any) -> str:
        return await self._act(action.payload({name: value for name, value in arguments.items() if value is not None}))

    properties, required = action.parameters["properties"], {*action.parameters["required"]}
    given = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if name in required else None,
            annotation=_kind(told) if name in required else _kind(told) | None,
        )
        for name, told in properties.items()
    ]
    method: Any = act
    method.__name__ = method.__qualname__ = action.name
    method.__doc__ = action.description
    method.__signature__ = Signature(
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *given], return_annotation=str
    )
    method.__annotations__ = {each.name: each.annotation for each in given} | {"return": str}
    described = {"name": action.name, "description": action.description, "parameters": dict(action.parameters)}
    method.tool_schema = {"type": "function", "function": described}
    return method


def _kind(schema: Mapping[str, Any]) -> Any:
    several: list[Mapping[str, Any]] = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    told = several[0] if len(several) == 1 else schema
    return KINDS.get(str(told.get("type")), Any)
