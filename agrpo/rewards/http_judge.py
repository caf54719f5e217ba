"""A judge behind a URL: a reward model, another language model, a service of yours."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from agrpo.errors import RewardError
from agrpo.records.group import RolloutGroup
from agrpo.registry import part
from agrpo.rewards.calling import Call
from agrpo.rewards.services.posting import Patience, post

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@part
class HttpJudge:
    """What a service answers to a POST of the group.

    It is sent `prompts`, `completions` and `columns`, as a reward function is called, and has to answer `{"rewards": […]}`
    with a number or null per completion. What it notes of them may stand beside that: `{"log_extra": {"column": […]},
    "log_metric": {"name": 0.5}}`. An empty group asks whether it is there: the answer is `{"rewards": []}`.
    """

    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+")]
    """`http://` or `https://`. Redirects are not followed."""
    request_seconds: Positive = 10.0
    """Most time of one request."""
    deadline_seconds: Positive = 25.0
    """Most time for a group, retries and pauses included. Below `rewards.timeout_seconds`."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """After no answer, a lost connection, or a status that may pass (408, 425, 429, 500, 502, 503, 504)."""
    backoff_seconds: Positive = 0.5
    """Pause before the first retry; twice as long before each further one. A service may ask for more (`Retry-After`)."""
    api_key_variable: str | None = None
    """Environment variable whose value is sent as a bearer token. A key itself would end up in the run's records."""
    send_completion_ids: bool = False
    """Send the tokens too, as `completion_ids`."""
    send_trainer_state: bool = False
    """Send how far the run was too, as `trainer_state`."""

    whole_group: ClassVar[bool] = True
    """A service may compare the completions, and one that is down is not asked once more about each of them."""

    @property
    def seconds(self) -> dict[str, float]:
        """As for `Timed`."""
        return {"deadline_seconds": self.deadline_seconds}

    def prepare(self) -> None:
        """Ask about an empty group. Raises `RewardError` where the service does not answer as it should."""
        with ThreadPoolExecutor(1) as thread:  # this one may have a loop that runs
            thread.submit(lambda: asyncio.run(self._ask(None, Call(0)))).result()

    async def __call__(self, group: RolloutGroup) -> list[float | None]:
        """What the service says, a finite number or None per rollout."""
        return await self.judge_and_note(group, Call(len(group.rollouts)))

    async def judge_and_note(self, group: RolloutGroup, call: Call) -> list[float | None]:
        """As for `Noting`."""
        return await self._ask(group, call)

    async def _ask(self, group: RolloutGroup | None, call: Call) -> list[float | None]:
        patience = Patience(
            request_seconds=self.request_seconds,
            deadline_seconds=self.deadline_seconds,
            max_retries=self.max_retries,
            backoff_seconds=self.backoff_seconds,
        )
        answer = await post(self.url, _as_json(self._body_of(group, call)), self._headers(), patience)
        found = _rewards_in(answer, call.num_completions, self.url)
        _note(answer, call, self.url)
        return found

    def _body_of(self, group: RolloutGroup | None, call: Call) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompts": group.prompts if group else [],
            "completions": group.completions if group else [],
            "columns": group.reward_kwargs if group else {},
        }
        if self.send_completion_ids:
            body["completion_ids"] = group.completions_ids if group else []
        if self.send_trainer_state:
            body["trainer_state"] = asdict(call.trainer_state)
        return body

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.api_key_variable is None:
            return headers
        key = os.environ.get(self.api_key_variable, "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise RewardError(
                f'reward "http_judge": the environment variable {self.api_key_variable} (api_key_variable) holds no key: one '
                "line of letters, digits and signs without a space was expected"
            )
        if not key:
            raise RewardError(
                f'reward "http_judge": the environment variable {self.api_key_variable} (api_key_variable) is not set; '
                "set it where the run is started"
            )
        return {**headers, "Authorization": f"Bearer {key}"}


def _as_json(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RewardError(
            f'reward "http_judge": the group cannot be sent as JSON ({error}); take such columns out of the dataset'
        ) from None


def _rewards_in(answer: Any, count: int, url: str) -> list[float | None]:
    """The rewards in an answer. Raises `RewardError` for any other shape."""
    found = cast("dict[str, Any]", answer).get("rewards") if isinstance(answer, dict) else None
    expected = f'expected {{"rewards": […]}} with {count} numbers or nulls'
    if not isinstance(found, list):
        raise RewardError(f"{url} answered {_short(answer)}; {expected}")
    rewards = cast("list[Any]", found)
    if len(rewards) != count:
        raise RewardError(f"{url} answered with {len(rewards)} rewards; {expected}")
    for place, value in enumerate(rewards):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise RewardError(f"{url} answered rewards[{place}] = {_short(value)}; {expected}")
    return [None if value is None else float(value) for value in rewards]


def _note(answer: dict[str, Any], call: Call, url: str) -> None:
    """Note what the answer has beside its rewards. Raises `RewardError` for any other shape, `NoteRefused` for its values."""
    for name, log in (("log_extra", call.log_extra), ("log_metric", call.log_metric)):
        noted = answer.get(name, {})
        if not isinstance(noted, dict):
            raise RewardError(f"{url} answered {name} = {_short(noted)}; expected an object of names and what is noted")
        for key, value in cast("dict[str, Any]", noted).items():
            log(key, value)


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply to be shown"
    return text if len(text) <= 100 else f"{text[:100]}…"
