"""A whole run whose rollouts act in environments: each is asked its own prompt, paid by its world, and the books add up."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agrpo.audit.verifying import verify
from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.engines.transformers import Transformers
from agrpo.errors import EnvironmentFault
from agrpo.instruments.rollout_page.choosing import Place
from agrpo.instruments.rollout_page.page import rollout_page
from agrpo.instruments.rollout_page.pieces import pieces_of
from agrpo.instruments.rollout_page.reading import read_page
from agrpo.queue.run_folder import RunFolder
from agrpo.records.arrow import group_from_arrow, scored_from_arrow
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.stages import test_tool_run
from tests.stages.playing import call_of
from tests.stages.test_recorded_metrics import assert_sql_says_what_was_logged, logged
from tests.stages.test_tool_run import Prompted
from tests.stages.walk import LOCKSTEP, dones, settings, walk

LINES = [
    call_of("guess", value=1),
    call_of("guess", value=2),
    call_of("guess", value=3),
    "no idea",
    "it is 2",
    "<tool_call>",
]
ROWS = [{"environment": "game", "target": number % 3 + 1} for number in range(6)]
FACTORIES = {"game": "tests.environments.worlds:Game", "broken": "tests.environments.worlds:Failing"}


def environment_run(
    model: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    rows: list[dict[str, Any]] = ROWS,
    steps: int = 1,
) -> RunFolder:
    """Steps in lockstep of two groups of three rollouts, whose words are chosen and whose weights are real."""
    started = Transformers.__call__
    monkeypatch.setattr(
        Transformers, "__call__", lambda part, model, needs: Prompted(started(part, model, needs), Path(model.path))
    )
    monkeypatch.setattr(test_tool_run, "LINES", LINES)
    place.mkdir()
    prompts = place / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, rows)))
    tree = settings(
        model,
        prompts,
        place,
        loss={"name": "clip"},
        engine={**LOCKSTEP["engine"], "num_generations": 3, "max_completion_length": 100},
        asynchronous=LOCKSTEP["asynchronous"],
        environments={"factories": FACTORIES},
        tools={"max_tool_calling_iterations": 3},
        stop={"max_steps": steps},
    )
    folder = prepare(resolve(values={**tree, "rewards": []}))
    walk(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Of a run that has ended and is recorded."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ended = environment_run(tiny_model, tmp_path_factory.mktemp("environments") / "run", monkeypatch)
    record_once(ended, Database(ended.database))
    return ended


@pytest.mark.spec("A-256", "A-257", "A-330", "A-331")
def test_a_run_is_rewarded_by_its_environments_alone_and_its_books_balance(folder: RunFolder):
    assert_sql_says_what_was_logged(folder)
    measures = logged(folder)
    assert measures[1, "env/reset_s"] > 0 and measures[1, "env/reward_s"] > 0
    assert measures[1, "rewards/Game/mean"] == measures[1, "reward"]
    assert measures[1, "tools/guess/call_count"] > 0
    rewards = query(folder.database, "SELECT DISTINCT name, weight FROM rewards").to_pylist()
    assert rewards == [{"name": "Game", "weight": 1.0}]
    own = query(folder.database, "SELECT DISTINCT own_prompt, environment_class FROM rollouts").to_pylist()
    assert [(json.loads(row["own_prompt"]), row["environment_class"]) for row in own] == [
        ([{"role": "user", "content": "Guess a number between 1 and 9."}], "Game")
    ]
    assert measures[1, "sampling/sampling_logp_difference/max"] < 1e-4
    assert verify(folder, deep=True).findings == []


def test_the_scores_of_a_group_are_what_its_worlds_paid(folder: RunFolder):
    for ticket in range(2):
        group = group_from_arrow(folder.groups.demand(ticket))
        scored = scored_from_arrow(folder.scored.demand(ticket))
        paid = [rollout.stay.reward for rollout in group.rollouts if rollout.stay]
        assert len(paid) == 3
        (score,) = scored.scores
        assert scored.rewards == score.values == paid


def test_a_rollouts_page_shows_what_it_was_asked_and_by_whom(folder: RunFolder):
    page = read_page(folder, Place(ticket=0, rollout_index=1), pieces_of(folder.document(), folder.local))
    assert page.rollout is not None and page.rollout.own_prompt is not None
    assert page.rollout.own_prompt[0]["content"] == "Guess a number between 1 and 9."
    assert page.group.prompt == []
    shown = _text(rollout_page(page, folder.document()["settings"]["tree"]))
    assert "as this rollout's environment asked it" in shown and "Guess a number between 1 and 9." in shown
    assert "Game ·" in shown


def _text(parts: Iterable[Any]) -> str:
    console = Console(width=160, file=io.StringIO())
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.spec("K13")
def test_a_world_that_never_begins_costs_its_groups_and_in_the_end_the_run(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [{"environment": "broken", "breaks": "reset raises"}]
    with pytest.raises(EnvironmentFault, match=r"no rollout of 8 groups in a row .* Failing.reset raised KeyError"):
        environment_run(tiny_model, tmp_path / "run", monkeypatch, rows=rows)


@pytest.mark.slow
def test_a_world_that_never_pays_ends_the_run_and_says_what_to_mend(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prompt = [{"role": "user", "content": "Play."}]
    rows = [{"environment": "broken", "prompt": prompt, "breaks": "get_reward raises"}] * 12
    with pytest.raises(EnvironmentFault, match=r"Failing\.get_reward failed for every rollout of 8 groups in a row"):
        environment_run(tiny_model, tmp_path / "run", monkeypatch, rows=rows, steps=6)


@pytest.mark.slow
def test_a_run_with_environments_repeats_bit_for_bit(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = (environment_run(tiny_model, tmp_path / name, monkeypatch, steps=2) for name in ("one", "two"))
    assert [done.digest for done in dones(first)] == [done.digest for done in dones(second)]
    for ticket in range(4):
        groups = [group_from_arrow(folder.groups.demand(ticket)) for folder in (first, second)]
        assert groups[0].completions == groups[1].completions
        stays = [[rollout.stay and rollout.stay.reward for rollout in group.rollouts] for group in groups]
        assert stays[0] == stays[1]
