"""`agrpo sql` and `agrpo questions` on a run: lists, files, standard input, options, and refusals that teach."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agrpo.cli import app
from agrpo.cli.commands.questions import questions
from agrpo.database.questions import all_questions
from agrpo.database.writer import Database
from agrpo.errors import ConfigError, DatabaseError
from agrpo.stages.recorder import record_once
from tests.database.synthetic import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = small_run(tmp_path_factory.mktemp("sql") / "small")
    record_once(folder, Database(folder.database))
    return str(folder.database.parent)


def agrpo(*arguments: str, code: int = 0, given: str | None = None, width: int = 80) -> Result:
    done = CliRunner().invoke(app, arguments, input=given, env={"COLUMNS": str(width), "NO_COLOR": "1"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_sql_is_read_from_a_file_or_from_standard_input(run: str, tmp_path: Path):
    file = tmp_path / "mine.sql"
    file.write_text("-- how many\nSELECT count(*) AS n FROM rollouts;\n")
    assert agrpo("sql", run, "--file", str(file)).output.splitlines() == ["n", "8"]
    assert agrpo("sql", run, "-", given="SELECT 1 AS one").output.splitlines() == ["one", "1"]


def test_sql_and_a_file_at_once_are_refused(run: str, tmp_path: Path):
    (tmp_path / "mine.sql").write_text("SELECT 1")
    assert "not both" in agrpo("sql", run, "SELECT 1", "--file", str(tmp_path / "mine.sql"), code=2).output


def test_without_sql_the_tables_and_views_are_listed_with_what_they_hold(run: str):
    lines = agrpo("sql", run).output.splitlines()
    assert lines[0] == "relation,kind,comment"
    assert 'live_steps,view,"The finished steps that count, one per step, with what their plan decided."' in lines
    assert any(line.startswith("rollouts,table,") for line in lines)


def test_a_wrong_name_in_sql_is_told_with_the_nearest(run: str):
    error = agrpo("sql", run, "FROM rolouts", code=1).exception
    assert isinstance(error, DatabaseError)
    assert "did you mean rollouts" in str(error)


def test_questions_are_listed_with_their_options():
    told = agrpo("questions", width=160).output
    for question in all_questions():
        assert question.name in told
        assert question.title in told
    assert "agrpo questions latest hardest_prompts" in told


def test_a_question_named_where_the_run_belongs_is_put_right():
    with pytest.raises(ConfigError, match="waits is a question, and the run is missing: agrpo questions latest waits"):
        app(["questions", "waits"], standalone_mode=False)


def test_an_option_of_a_question_is_refused_without_one():
    with pytest.raises(ConfigError, match="--rows belongs to a question"):
        app(["questions", "latest", "--rows", "3"], standalone_mode=False)


def test_a_question_is_answered_as_csv_for_programs(run: str):
    lines = agrpo("questions", run, "pending-tickets").output.splitlines()
    assert lines[0] == ",".join(all_questions()[21].column_names)
    assert lines[1].startswith("scored,1,3,3,")


def test_a_question_is_answered_for_people_with_how_to_read_it(run: str):
    told = agrpo("questions", run, "13", "--last", "1", "--format", "table").output
    assert told.startswith("How many tokens does a step train, and how fast?")
    assert "2.75" in told
    assert "compare tokens_per_second" in " ".join(told.split())


@pytest.mark.parametrize("question", all_questions(), ids=lambda question: question.name)
def test_no_number_is_cut_at_eighty_columns(run: str, question):
    told = agrpo("questions", run, question.name, "--format", "table").output
    assert "…" not in told.removesuffix("\n")
    assert max(map(len, told.splitlines())) <= 80


def test_the_sql_of_a_question_can_be_changed_and_asked(run: str):
    printed = agrpo("questions", "tokens_and_throughput", "--sql", "--last", "1").output
    assert printed == agrpo("questions", run, "tokens_and_throughput", "--sql", "--last", "1").output
    assert agrpo("sql", run, "-", given=printed).output.splitlines()[1].startswith("2,2,11,5,4,1,2.75,")


def test_an_option_that_a_question_does_not_take_is_refused_by_name(run: str):
    error = agrpo("questions", run, "waits", "--ticket", "3", code=1).exception
    assert isinstance(error, DatabaseError)
    assert "question waits has no parameter ticket" in str(error)


def test_every_parameter_of_a_question_is_an_option():
    options = inspect.signature(questions).parameters
    for question in all_questions():
        for parameter in question.parameters:
            assert parameter.name in options, f"{question.name} takes {parameter.name}"
