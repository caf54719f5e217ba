"""What would keep environments from working is told before a run starts, all of it, with the rows and the names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import EnvironmentsSection, RunConfig, resolve
from agrpo.environments import load_environments
from agrpo.environments.checking import found_environments
from agrpo.errors import ConfigError, EnvironmentFault
from agrpo.runs.checks import check
from tests.environments import worlds
from tests.stages.walk import settings

HERE = "tests.environments.worlds"
REWARDS = [{"name": "tests.stages.judges:distinct_tokens"}]
PROMPT = [{"role": "user", "content": "Play."}]


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    worlds.MADE.clear()
    yield


def built(model: Path, place: Path, rows: list[dict[str, Any]], **tables: Any) -> RunConfig:
    prompts = place / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    others = {"rewards": tables.pop("rewards", REWARDS)}
    if "source" in tables:
        others["prompts"] = tables.pop("source")
    return RunConfig.build(resolve(values={**settings(model, prompts, place, **tables), **others}))


def problems(
    model: Path, place: Path, rows: list[dict[str, Any]], factories: dict[str, str], **tables: Any
) -> list[str]:
    environments = {"factories": {name: f"{HERE}:{cls}" for name, cls in factories.items()}}
    return check(built(model, place, rows, environments=environments, **tables))


def test_a_run_of_environments_alone_has_nothing_wrong(tiny_model: Path, tmp_path: Path):
    rows = [{"environment": "game", "target": 3}, {"environment": "count"}, {"environment": "game", "target": 1}]
    assert problems(tiny_model, tmp_path, rows, {"game": "Game", "count": "Counting"}, rewards=[]) == []


@pytest.mark.spec("A-258", "G-207")
def test_rows_that_pick_none_or_an_unknown_one_are_named_with_the_known_ones(tiny_model: Path, tmp_path: Path):
    rows = [{"environment": "quiet"}, *[{"environment": "gaem"}] * 7, {"prompt": PROMPT}]
    found = problems(tiny_model, tmp_path, rows, {"game": "Game", "quiet": "Quiet"})
    assert found == [
        'prompts: rows 1, 2, 3, 4, 5 and 2 more name the environment "gaem", which environments.factories does not have; did '
        'you mean "game"?',
        'prompts: rows 8 name no environment; each needs a column "environment" with one of: game, quiet',
    ]


def test_rows_that_lack_what_reset_needs_are_named(tiny_model: Path, tmp_path: Path):
    rows = [{"environment": "game", "target": 3}, {"environment": "game"}, {"environment": "quiet"}]
    (found,) = problems(tiny_model, tmp_path, rows, {"game": "Game", "quiet": "Quiet"})
    assert found.startswith('prompts: rows 1 lack the column "target", which Game.reset needs')


def test_a_row_that_picks_where_there_is_nothing_to_pick_is_refused(tiny_model: Path, tmp_path: Path):
    rows = [{"prompt": PROMPT, "environment": "game", "target": 1}]
    (alone,) = check(built(tiny_model, tmp_path, rows, environments={"factory": f"{HERE}:Game"}))
    assert 'rows 0 name the environment "game", and the run has a single one' in alone
    (none,) = check(built(tiny_model, tmp_path, rows))
    assert 'rows 0 name an environment ("game"), and the run has none' in none


@pytest.mark.spec("A-031")
@pytest.mark.parametrize("source", ["files", "hub"])
def test_rows_without_a_prompt_are_refused_with_their_columns_where_no_environment_asks(
    tiny_model: Path, tmp_path: Path, source: str
):
    rows = [{"question": "2+3?", "answer": "5"}]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "prompts.jsonl").write_text(json.dumps(rows[0]))
    prompts = {"name": source, "path": str(folder if source == "hub" else folder / "prompts.jsonl")}
    (found,) = check(built(tiny_model, tmp_path, rows, source=prompts))
    assert found.startswith('prompts: row 0 has no "prompt" column; its columns are: question, answer')


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("same_game", "gave the same Game twice; every rollout needs an instance of its own"),
        ("Unmade", "environments.factories.one: making Unmade raised OSError: no display"),
        ("WithoutReset", 'WithoutReset has no method "reset"'),
        ("quiet_or_game", "made a Game where it was to make a Quiet"),
    ],
)
def test_a_factory_that_cannot_serve_rollouts_is_refused(name: str, told: str):
    kinds, found = found_environments(EnvironmentsSection(factories={"one": f"{HERE}:{name}"}))
    assert kinds == {}
    assert len(found) == 1 and told in found[0]


def test_an_environment_that_hangs_while_it_is_made_is_refused_in_time(monkeypatch: pytest.MonkeyPatch):
    worlds.HOLDING.clear()
    monkeypatch.setattr(worlds, "untyped_game", lambda: worlds.HOLDING.wait(10))
    _, (found,) = found_environments(EnvironmentsSection(factory=f"{HERE}:untyped_game", timeout_seconds=0.2))
    told = f'making "{HERE}:untyped_game" did not return within 0.2 s (environments.timeout_seconds)'
    assert told in found
    with pytest.raises(EnvironmentFault) as at_a_start:
        load_environments(EnvironmentsSection(factory=f"{HERE}:untyped_game", timeout_seconds=0.2))
    assert str(at_a_start.value) == told
    monkeypatch.setattr(worlds.Quiet, "__init__", lambda self: worlds.HOLDING.wait(10) and None)
    _, (found,) = found_environments(EnvironmentsSection(factory=f"{HERE}:Quiet", timeout_seconds=0.2))
    worlds.HOLDING.set()
    assert found == "environments.factory: making Quiet did not return within 0.2 s (environments.timeout_seconds)"


@pytest.mark.parametrize(
    ("factories", "tables", "told"),
    [
        ({"game": "Game"}, {"tools": {"functions": [f"{HERE}:guess"]}}, '"guess" is also a method of Game'),
        (
            {"quiet": "Quiet"},
            {"rewards": []},
            "rewards: missing; Quiet has no get_reward, and rollouts without a reward are",
        ),
        ({"game": "Game", "quiet": "Quiet"}, {"rewards": []}, "rewards: missing; Quiet has no get_reward"),
    ],
)
def test_what_could_not_be_told_apart_or_would_pay_nothing_is_refused(
    tiny_model: Path, tmp_path: Path, factories: dict[str, str], tables: dict[str, Any], told: str
):
    rows = [{"prompt": PROMPT, "environment": next(iter(factories)), "target": 1}]
    assert any(told in found for found in problems(tiny_model, tmp_path, rows, factories, **tables))


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"environments": {"timeout_seconds": 3.0}}, "environments.timeout_seconds: says how long"),
        (
            {"environments": {"factory": "a:B", "factories": {"c": "d:E"}}},
            "environments.factory: is the only environment",
        ),
        (
            {"environments": {"factory": "a:B", "timeout_seconds": 60.0}},
            "environments.timeout_seconds = 60: an environment may",
        ),
        ({"environments": {"factory": "a b"}}, "environments.factory = 'a b': string should match pattern"),
        ({"environments": {"factorys": "a:B"}}, "environments.factorys: unknown setting"),
        (
            {"tools": {"timeout_seconds": 3.0}},
            "tools.timeout_seconds: says how functions are called, and there is none",
        ),
        ({"rewards": []}, "rewards: missing"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(tiny_model: Path, tmp_path: Path, tables: dict[str, Any], told: str):
    with pytest.raises(ConfigError) as refused:
        built(tiny_model, tmp_path, [{"prompt": PROMPT}], **tables)
    assert [problem for problem in refused.value.problems if problem.startswith(told)], refused.value.problems
