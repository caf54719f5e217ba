"""OpenEnv: environments behind a server that is asked over a WebSocket. https://github.com/huggingface/OpenEnv."""

from __future__ import annotations

import os
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from agrpo.environments.adapters.openenv_server.session import Session
from agrpo.environments.adapters.openenv_server.world import Server, World, world_at
from agrpo.errors import EnvironmentFault, MissingPackage
from agrpo.registry import part


@part
class OpenEnv:
    """Each rollout that runs has a session of its own on the server."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    """Of the server, such as `http://127.0.0.1:8000`."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """Under which its rewards are told. None: what the server calls itself."""
    show: str | None = None
    """Field of an observation that the policy reads. None: its only field where that is text, else all of it as JSON."""
    reward: Literal["sum", "last"] = "sum"
    """What a rollout is paid: all rewards of its steps, or that of the last step that had one."""
    connect_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    """How long a server may be away, or have no session left, before a rollout's `reset` fails."""
    token_variable: str | None = None
    """Name of an environment variable whose value is sent as `Authorization: Bearer …`. None: nothing is."""

    def __call__(self) -> Session:
        """A new instance; it connects when it is reset. Raises `MissingPackage`, or `EnvironmentFault` as `world_at` does."""
        return _class_for(self)(self._server(), show=self.show, reward=self.reward)

    def world(self) -> World:
        """What the server offers."""
        return world_at(self._server())

    def _server(self) -> Server:
        try:
            import openenv.core.generic_client  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackage(
                f'environment "openenv" needs OpenEnv\'s client: pip install "agrpo[openenv]" ({error})'
            ) from error
        headers: dict[str, str] = {}
        if self.token_variable is not None:
            token = os.environ.get(self.token_variable)
            if not token:
                raise EnvironmentFault(
                    f"openenv: the environment variable {self.token_variable} (token_variable) is not set; export it, or leave the "
                    "setting out"
                )
            headers["Authorization"] = f"Bearer {token}"
        return Server(url=self.url.rstrip("/"), connect_seconds=self.connect_seconds, headers=headers)


@cache
def _class_for(adapter: OpenEnv) -> type[Session]:
    """One class for all instances of an environment: its methods are what the server offers, asked once a process."""
    world = adapter.world()
    return type(adapter.name or world.name, (Session,), {"__doc__": world.description, **world.methods()})
