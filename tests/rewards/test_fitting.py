"""A reward's settings beside those of the run: times that a call would cut short, lengths that no answer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agrpo.config import RewardSection, RunConfig, resolve
from agrpo.rewards import rewards
from agrpo.rewards.fitting import length_warnings, time_problems
from agrpo.runs.checks import check, unreached_lengths
from tests.runs.made import a_config

OVERLONG = {"max_completion_len": 20480, "soft_punish_cache": 4096}


@pytest.mark.parametrize(
    ("name", "settings", "timeout_seconds", "told"),
    [
        ("http_judge", {"deadline_seconds": 500}, 30, ["deadline_seconds = 500"]),
        ("http_judge", {}, 25, ["deadline_seconds = 25"]),
        ("http_judge", {}, 26, []),
        ("code_execution", {"cpu_seconds": 100, "wall_seconds": 50}, 1, ["cpu_seconds = 100", "wall_seconds = 50"]),
        ("code_execution", {}, 6, ["wall_seconds = 6"]),
        ("code_execution", {}, 30, []),
        ("exact_match", {}, 0.1, []),
        ("tests.rewards.judges:length", {}, 0.1, []),
    ],
)
def test_a_time_that_a_call_would_cut_short_is_a_problem(
    name: str, settings: dict[str, Any], timeout_seconds: float, told: list[str]
) -> None:
    knobs = {"url": "http://127.0.0.1:9/", **settings} if name == "http_judge" else settings
    problems = time_problems(RewardSection(name=name, settings=knobs, timeout_seconds=timeout_seconds))
    end = f": a whole call has rewards.timeout_seconds = {timeout_seconds:g}, and is killed before that"
    assert [problem.partition("; raise")[0] for problem in problems] == [
        f'reward "{name}": {each}{end}' for each in told
    ]


@pytest.mark.parametrize(
    ("name", "settings", "longest", "told"),
    [
        ("soft_overlong_punishment", OVERLONG, 16384, "begins beyond 16384 tokens"),
        ("soft_overlong_punishment", OVERLONG, 16385, None),
        ("cosine_scaled", {"max_len": 4097}, 4096, "max_len = 4097: engine.max_completion_length = 4096 ends"),
        ("cosine_scaled", {"max_len": 4096}, 4096, None),
        ("repetition_penalty", {}, 1, None),
        ("tests.rewards.judges:length", {}, 1, None),
    ],
)
def test_a_length_that_no_answer_has_is_warned_of(
    name: str, settings: dict[str, Any], longest: int, told: str | None
) -> None:
    warnings = length_warnings(RewardSection(name=name, settings=settings), longest)
    assert warnings == [] if told is None else told in warnings[0]


def test_a_run_is_held_to_both_and_turns_with_tools_to_no_length(tmp_path: Path) -> None:
    def with_reward(reward: dict[str, Any], **tables: Any) -> RunConfig:
        tree = {**a_config(tmp_path).settings.tree, **tables}
        return RunConfig.build(resolve(values={**tree, "rewards": [reward]}))

    slow = {"name": "code_execution", "timeout_seconds": 5.0}
    assert any("wall_seconds = 6" in problem for problem in check(with_reward(slow)))
    overlong = {"name": "soft_overlong_punishment", "settings": OVERLONG}
    assert check(with_reward(overlong)) == []
    assert len(unreached_lengths(with_reward(overlong))) == 1
    assert unreached_lengths(with_reward(overlong, tools={"functions": ["tests.rewards.judges:length"]})) == []


@pytest.mark.parametrize(
    "marks", [{"closing": "<think>"}, {"opening": "|", "closing": "||"}, {"opening": "</think>!"}, {"opening": "/"}]
)
def test_marks_of_reasoning_that_cannot_be_told_apart_are_refused(marks: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"closing = .*expected a mark that is no part of opening"):
        rewards.build("think_format", marks)
