"""docs/rewards.md names every reward with its knobs and defaults, and what it shows works."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web

from agrpo.config import RewardSection
from agrpo.records.trainer_state import TrainerState
from agrpo.rewards import FunctionReward, rewards
from agrpo.rewards.calling import Call, Notes
from agrpo.rewards.functions import reward_function
from agrpo.rewards.programs.cases import Case, cases_of
from tests.rewards.test_http_judge import judged
from tests.rewards.worlds import group_of

PAGE = (Path(__file__).parent.parent / "docs" / "rewards.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def functions() -> list[str]:
    return [text for text in blocks("python") if "aiohttp" not in text]


@pytest.mark.parametrize("name", rewards.names())
def test_every_reward_is_on_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("name", sorted({*rewards.names()} - {"exact_match", "reasoning_gym", "accuracy"}))
def test_every_knob_is_on_the_page(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for knob in dataclasses.fields(rewards[name]):  # pyright: ignore[reportArgumentType]
        assert any(f"`{knob.name}`" in row.split("|")[1] + row.split("|")[2] for row in rows), knob.name


def test_every_setting_of_a_reward_table_is_on_the_page() -> None:
    for field in dataclasses.fields(RewardSection):  # pyright: ignore[reportArgumentType]
        assert f"`{field.name}`" in PAGE or f"{field.name} = " in PAGE


def test_the_tables_shown_can_be_run() -> None:
    for text in blocks("toml"):
        for table in tomllib.loads(text)["rewards"]:
            section = RewardSection(**table)
            assert rewards.build(section.name, section.settings)


def test_the_service_shown_judges() -> None:
    names: dict[str, Any] = {}
    (service,) = [text for text in blocks("python") if "aiohttp" in text]
    exec(service, names)
    assert isinstance(names["app"], web.Application)
    assert judged(names["judge"], "short", "long" * 100) == [1.0, 0.0]


def test_the_function_shown_rewards() -> None:
    names: dict[str, Any] = {}
    exec(functions()[0], names)
    group = group_of("it is 4", "no", solution="4")
    assert names["shorter"](completions=group.completions, **group.reward_kwargs) == [1 - 0.007, -0.002]


def test_the_function_shown_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ModuleType("shown_in_docs")
    exec(functions()[1], shown.__dict__)
    monkeypatch.setitem(sys.modules, "shown_in_docs", shown)
    call = Call(4, TrainerState(global_step=5, max_steps=10))
    reward = reward_function("shown_in_docs:lenient")
    assert isinstance(reward, FunctionReward)
    assert reward.judge_and_note(group_of("it is 4", "5", "no", "", solution="4"), call) == [1.0, 0.25, 0.0, 0.0]
    assert call.notes == Notes(extras={"answer": ["4", "5", "no", ""]}, metrics={"share_right": 0.25})


def test_the_cases_shown_are_cases() -> None:
    (shown,) = blocks("json")
    assert cases_of(json.loads(shown), "tests") == [
        Case(input="1 2\n", output="3\n"),
        Case(test="assert add(1, 2) == 3"),
    ]
