"""Environments of the tests, served by OpenEnv itself: `python -m tests.openenv.served NAME PORT SESSIONS`."""

from __future__ import annotations

import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Dial(Action):
    """Turn the dial of the safe."""

    value: int = Field(description="Where to turn it.")
    slowly: bool | None = Field(default=None, description="Whether to take care.")


class Seen(Observation):
    hint: str = ""


class Safe(Environment[Dial, Seen, State]):
    """A safe that opens at one number."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.target = 0
        self.turns = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **columns: Any) -> Seen:
        self.target, self.turns = (seed or 0) % 5, 0
        return Seen(hint=f" It is one of 5 numbers{columns.get('more', '')}.")

    def step(self, action: Dial, timeout_s: float | None = None, **how: Any) -> Seen:
        self.turns += 1
        if action.value == -1:
            raise ValueError("the dial has no -1")
        if action.value == -2:
            time.sleep(20)
        found = action.value == self.target
        return Seen(hint="open" if found else "closed", reward=1.0 if found else 0.25, done=found)

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


def tools_environment() -> Any:
    """One whose actions are calls of MCP tools."""
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment

    served = FastMCP("adding")

    @served.tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @served.tool
    def fail(why: str) -> str:
        """Fail."""
        raise ValueError(why)

    class Adding(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__(served)

        def reset(self, seed: int | None = None, episode_id: str | None = None, **columns: Any) -> Observation:
            return Observation()

        def _step_impl(self, action: Action, timeout_s: float | None = None, **how: Any) -> Observation:
            raise ValueError("only tools are called")

        @property
        def state(self) -> State:
            return State()

    return Adding


def main(name: str, port: int, sessions: int) -> None:
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    served: dict[str, Any] = {
        "safe": lambda: (Safe, Dial, Seen),
        "tools": lambda: (tools_environment(), CallToolAction, CallToolObservation),
    }
    app = create_fastapi_app(*served[name](), max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
