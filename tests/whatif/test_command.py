"""`agrpo whatif`: what it prints, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agrpo.cli import app
from agrpo.database.queries import query
from agrpo.database.writer import Database
from agrpo.queue.run_folder import RunFolder
from agrpo.stages.recorder import record_once
from tests.stages.groups import a_config, a_group, publish

PAGE = Path(__file__).parents[2] / "docs" / "whatif.md"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    document = {"settings": {"tree": a_config().settings.tree, "origins": {}}}
    made = RunFolder.create(str(tmp_path / "run"), document)
    for ticket, rewards in enumerate([(9.0, 0.0), (1.0, 1.0), (0.0, 9.0)]):
        publish(made, a_group(ticket), rewards)
    return made


def agrpo(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_the_answer_is_told_in_lines_and_kept_for_sql(folder: RunFolder):
    told = agrpo("whatif", folder.url, "--reward", "tests.whatif.judges:same", "--name", "mine", "--plain").output
    assert "what if reward tests.whatif.judges:same: 3 groups" in told
    assert "groups dropped: equal_rewards\t1\t0" in told
    assert "1 of 3 groups would have changed sign: 2 of 4 rollouts whose advantage is not 0" in told
    assert "1 groups could have been trained that the recorded scores drop: equal_rewards 1" in told
    flipped = re.search(r"read one with: agrpo show (\S+) (\d)/(\d)", told)
    assert flipped and (flipped[1], flipped[2]) == (folder.url, "0")
    record_once(folder, Database(folder.database))
    asked = re.search(r'agrpo sql \S+ "(.+)"', told)
    assert asked and len(query(folder, asked[1])) == 6


def test_the_question_of_the_page_is_answered(folder: RunFolder):
    agrpo("whatif", folder.url, "--reward", "tests.whatif.judges:same", "--name", "my_rewards-shorter")
    record_once(folder, Database(folder.database))
    (sql,) = re.findall(r"```sql\n(.+?)```", PAGE.read_text(), re.DOTALL)
    found = query(folder, sql).to_pylist()
    assert [(row["prompt_id"], row["num_flipped"], row["reward_before"]) for row in found] == [("p0", 2, 4.5)]


def test_one_of_reward_and_advantage_is_asked(folder: RunFolder):
    for options in ([], ["--reward", "exact_match", "--advantage", "grpo"]):
        assert "Give one of" in agrpo("whatif", folder.url, *options, code=2).output
    assert "it goes with --reward" in agrpo("whatif", folder.url, "--advantage", "grpo", "--keep", code=2).output
    assert folder.filesystem.list("whatif") == []
