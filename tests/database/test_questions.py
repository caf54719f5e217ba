"""The questions of docs/sql.md: each asked to a real run, and most checked by hand on a made-up one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from agrpo.config import resolve
from agrpo.database.queries import query
from agrpo.database.questions import Question, all_questions, find_question, parse
from agrpo.database.questions.document import document
from agrpo.database.schema import create_all
from agrpo.database.writer import Database
from agrpo.errors import DatabaseError
from agrpo.records.rollout import Rollout
from agrpo.records.sample import sequences_of
from agrpo.runs import prepare
from agrpo.stages.recorder import record_once
from tests.database.synthetic import a_rollout, a_turn, add_group, new_run, small_run
from tests.stages.walk import settings, walk

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"

# Tickets 0 and 1 ask the same prompt; the second reward likes what the first likes, and failed for ticket 3, whose second
# rollout repeats its first; one completion of ticket 2 was cut after 9 tokens. The dataset has 6 rows.
_DETAILS = """
    UPDATE groups SET row_index = ticket, prompt_id = CASE WHEN ticket < 2 THEN 'p0' ELSE prompt_id END;
    UPDATE scores SET reward = 0.5 WHERE ticket = 1 AND rollout_index = 1;
    UPDATE scores SET duplicate = true WHERE ticket = 3 AND rollout_index = 1;
    UPDATE rollouts SET completion_ids = [5, 6, 1], completion_text = 'answer 0' WHERE ticket = 3;
    UPDATE rollouts SET terminated = false, stop_reason = 'length', num_completion_tokens = 9
        WHERE ticket = 2 AND rollout_index = 0;
    INSERT INTO rewards BY NAME SELECT ticket, rollout_index, 'format' AS name, 0.0 AS weight, 3.0 AS duration_seconds,
        CASE WHEN ticket < 3 THEN 2 * value END AS value, CASE WHEN ticket = 3 THEN 'TimeoutError: late' END AS error
        FROM rewards;
    UPDATE runs SET document = json_merge_patch(document, '{"prompts_per_epoch": 6}');
"""


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run(tmp_path_factory.mktemp("made_up") / "run")
    record_once(folder, Database(folder.database))
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute(_DETAILS)
    return folder.database


@pytest.fixture(scope="module")
def real(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("real")
    rows = [{"prompt": [{"role": "user", "content": f"{first}+1 ="}]} for first in range(3)]
    (place / "prompts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    tree = settings(tiny_model, place / "prompts.jsonl", place, asynchronous={"max_staleness": 1})
    folder = prepare(resolve(values=tree))
    walk(folder)
    record_once(folder, Database(folder.database))
    return folder.database


def answer(database: Path, name: str, *columns: str, **given: int | float | str | None) -> list[tuple]:
    """The answer's rows; of these columns, if any are named."""
    table = query(database, find_question(name).sql(given))
    return [tuple(row.values()) for row in (table.select(columns) if columns else table).to_pylist()]


@pytest.mark.parametrize("question", all_questions(), ids=lambda question: question.name)
def test_every_question_is_answered_with_the_columns_it_explains(real: Path, question: Question):
    table = query(real, question.sql())
    assert table.column_names == question.column_names
    may_be_empty = {
        "asked_again",
        "duplicates",
        "failed_rewards",
        "pending_tickets",
        "reward_correlations",
        "trust_region",
    }
    assert len(table) > 0 or question.name in may_be_empty


def test_hardest_prompts_come_first(made_up: Path):
    told = answer(made_up, "hardest_prompts", "prompt_id", "num_groups", "reward_mean", "pass_rate")
    assert told == [("p2", 1, 0.5, 0.5), ("p3", 1, 0.5, 0.5), ("p0", 2, 0.625, 0.5)]
    assert answer(made_up, "hardest_prompts", "prompt_id", asked=2) == [("p0",)]


def test_improvement_is_the_last_asking_less_the_first(made_up: Path):
    told = answer(made_up, "improved_prompts", "prompt_id", "first_reward_mean", "last_reward_mean", "improvement")
    assert told == [("p0", 0.5, 0.75, 0.25)]


def test_rewards_by_staleness_count_dropped_groups_too(made_up: Path):
    told = answer(
        made_up, "rewards_by_staleness", "staleness", "num_groups", "trained_share", "reward_mean", "ratio_min"
    )
    assert told == [(0, 1, 1.0, 0.5, pytest.approx(0.4)), (1, 2, 0.5, 0.625, pytest.approx(0.39))]


def test_a_version_is_told_by_its_weights_and_its_rollouts(made_up: Path):
    older, newer = answer(made_up, "changed_between", second=1)
    assert older == (0, None, None, 4, 8, 0.5625, 3.25, 0.125, 0.125)
    assert newer == (1, 1, "d1", None, None, None, None, None, None)


def test_a_sample_is_traced_from_its_loss_to_its_tokens(made_up: Path):
    told = answer(made_up, "trace_sample", ticket=0)
    facts = {(record, fact): value for record, fact, value in told}
    assert facts["step", "loss"] == "0.5"
    assert facts["sample 0", "advantage"] == "1.0"
    assert facts["sample 0", "log_probs"] == "[-0.75, -0.75, -0.75]"
    assert facts["score", "reward"] == facts["reward correct", "value"] == "1.0"
    assert facts["rollout", "seed"] == "100"
    assert facts["turn 0", "prompt_ids"] == "[7, 8, 9]"
    assert facts["turn 0", "output_log_probs"] == "[-0.5, -0.5, -0.5]"
    assert [record for record, _, _ in told] == sorted((record for record, _, _ in told), key=_order(told).index)
    assert ("group", "ticket", "1") in answer(made_up, "trace_sample")


def _order(told: list[tuple]) -> list[str]:
    return list(dict.fromkeys(record for record, _, _ in told))


def test_dropped_groups_are_counted_by_reason(made_up: Path):
    told = answer(made_up, "dropped_groups", "drop_reason", "num_groups", "num_rollouts", "share", "tickets")
    assert told == [(None, 2, 4, pytest.approx(2 / 3), [1, 0]), ("stale", 1, 2, pytest.approx(1 / 3), [2])]


def test_a_repeated_completion_is_shown_once_with_its_copies(made_up: Path):
    told = answer(made_up, "duplicates", "ticket", "prompt_id", "copies", "num_rollouts", "completion")
    assert told == [(3, "p3", 2, 2, "answer 0")]


def test_the_longest_completion_comes_first(made_up: Path):
    told = answer(made_up, "longest_completions", "ticket", "rollout_index", "num_completion_tokens", rows=2)
    assert told == [(2, 0, 9), (3, 0, 3)]


def test_cut_completions_are_compared_with_whole_ones_of_their_prompt(made_up: Path):
    told = answer(made_up, "cut_completions", "prompt_id", "num_rollouts", "num_cut", "cut_reward", "whole_reward")
    assert told == [("p2", 2, 1, 1.0, 0.0)]


def test_reward_sources_tell_values_from_errors(made_up: Path):
    told = answer(made_up, "reward_sources", "name", "num_values", "num_silent", "num_errors", "value_mean")
    assert told == [("correct", 8, 0, 0, 0.5), ("format", 6, 0, 2, 1.0)]
    assert answer(made_up, "reward_correlations") == [("correct", "format", 6, pytest.approx(1.0), 0.5, 1.0)]


def test_failed_rewards_are_counted_by_message(made_up: Path):
    assert answer(made_up, "failed_rewards") == [("format", "TimeoutError: late", 2, 1, 3, 3, 3.0)]


def test_throughput_is_told_with_and_without_the_waiting(made_up: Path):
    told = answer(made_up, "tokens_and_throughput", last=1)
    assert told == [(2, 2, 11, 5, 4.0, 1.0, 2.75, pytest.approx(11 / 3))]


def test_the_parts_of_a_step_have_shares_that_add_up(made_up: Path):
    told = answer(made_up, "step_parts", "part", "seconds_mean", "share")
    assert told[:2] == [("backward", 1.0, 0.25), ("wait", 1.0, 0.25)]
    assert sum(share for _, _, share in told) == pytest.approx(1)


def test_waits_leave_out_who_did_not_wait(made_up: Path):
    rows = answer(made_up, "waits")
    told = {who: (number, total) for who, _, number, total, *_ in reversed(rows)}
    assert told["generator"] == (2, 2.0)
    assert told["learner"] == (2, 2.0)
    assert told["published version"] == (1, 0.0)
    held = [(what.partition(":")[0], number) for who, what, number, *_ in rows if who == "generator"]
    assert held == [("run-ahead", 2), ("load", 0), ("ceiling", 0), ("scoring", 0)]


def test_a_version_waits_for_its_first_engine_and_for_none_before_the_engine_started(tmp_path: Path):
    with duckdb.connect(str(tmp_path / "run.duckdb")) as connection:
        create_all(connection)
        connection.execute(
            """
            INSERT INTO versions BY NAME
                SELECT 0 AS attempt, unnest([1, 2]) AS version, 1 AS step, to_timestamp(0) AS published_at;
            INSERT INTO acknowledgements BY NAME SELECT engine, version, to_timestamp(second) AS acknowledged_at FROM (VALUES
                ('a', 1, 1), ('b', 1, 3600), ('unknown', 1, 3700), ('b', 2, 3605), ('a', 2, 3610)) t(engine, version, second);
            INSERT INTO events BY NAME SELECT 's' AS stream, 0 AS number, 'stage_started' AS kind,
                to_timestamp(3596) AS happened_at, '{"stage": "generator", "incarnation": "b"}' AS payload
            """
        )
    database = tmp_path / "run.duckdb"
    (wait,) = [row[2:] for row in answer(database, "waits") if row[0] == "published version"]
    assert wait == (2, 1.0 + 9.0, 5.0, 9.0)
    assert answer(database, "acknowledgement_lag", "version", "engine", "lag_seconds") == [
        (2, "b", 9.0), (2, "a", 3610.0), (1, "a", 1.0), (1, "b", 4.0), (1, "unknown", None),
    ]  # fmt: skip


def test_attempts_tell_what_they_lost(tmp_path: Path):
    with duckdb.connect(str(tmp_path / "run.duckdb")) as connection:
        create_all(connection)
        connection.execute("INSERT INTO attempts BY NAME SELECT unnest([0, 1]) AS attempt")
        connection.execute(
            "INSERT INTO bases (attempt, parent, base_step, adopted_through, void) "
            "VALUES (0, NULL, 0, 0, false), (1, 0, 2, 2, false)"
        )
        connection.execute("INSERT INTO steps BY NAME FROM (VALUES (0, 1), (0, 2), (0, 3), (1, 3)) t(attempt, step)")
    told = answer(tmp_path / "run.duckdb", "attempts", "attempt", "num_steps", "num_lost", "first_step", "last_step")
    assert told == [(0, 3, 1, 1, 2), (1, 1, 0, 3, 3)]


def test_the_trust_region_is_the_runs_or_the_one_given(made_up: Path):
    told = answer(made_up, "trust_region", "step", "low", "outside_share", low=0.395, high=2.0)
    assert told == [(2, 0.395, 0.5)]
    assert answer(made_up, "trust_region") == []


def test_the_largest_differences_are_of_single_tokens(made_up: Path):
    told = answer(made_up, "largest_differences", "ticket", "token_index", "token_id", "difference")
    assert len(told) == 10
    assert told[:3] == [(0, 0, 5, -0.25), (0, 1, 6, -0.25), (0, 2, 1, -0.25)]


def test_entropy_weighs_samples_by_their_tokens(made_up: Path):
    ((first, last, entropy, lowest, highest, tokens),) = answer(made_up, "entropy")
    assert (first, last, tokens) == (1, 2, 10)
    assert (entropy, lowest, highest) == (pytest.approx(1.045), pytest.approx(1.0), pytest.approx(1.11))


def test_pending_groups_and_prompts_that_were_never_asked(made_up: Path):
    assert answer(made_up, "pending_tickets", "reason", "num_groups", "first_ticket") == [("scored", 1, 3)]
    assert answer(made_up, "never_asked", "fate", "num_rows", "row_indices") == [
        ("asked and never trained", 2, [2, 3]),
        ("never asked", 2, [4, 5]),
        ("trained", 2, [0, 1]),
    ]


def test_a_measure_is_told_over_windows_of_steps(made_up: Path):
    assert answer(made_up, "windows") == [(1, 2, "reward", pytest.approx(3.5 / 6))]
    told = answer(made_up, "windows", "first_step", "value", metric="completions/max_length", size=1)
    assert told == [(1, 3.0), (2, 9.0)]


def test_settings_know_their_origin(real: Path):
    told = {setting: (value, origin) for setting, value, origin in answer(real, "settings")}
    assert told["step.groups"][0] == "2"
    assert told["loss.epsilon"] == ("0.2", "default")
    assert told["rewards[0].name"][1] != "default"


def test_tokens_of_several_turns_meet_their_log_probs(tmp_path: Path):
    folder = new_run(tmp_path / "run")
    turns = [a_turn([1, 2], [3, 4]), a_turn([1, 2, 3, 4, 9], [5, 6, 7]), a_turn([1, 7], [8])]
    turns[0], turns[1] = replace(turns[0], output_mask=[0, 1]), replace(turns[1], output_mask=[1, 0, 1])
    rollout = Rollout(completion=[], completion_ids=[3, 4, 5, 6, 7, 8], turns=turns, index=0)
    add_group(folder, 0, [rollout, a_rollout(1, [5, 6, 1])])
    record_once(folder, Database(folder.database))
    samples = [(0, 0, [-1.0, -2.0, -3.0]), (0, 1, [-5.0]), (1, 0, [-6.0, -7.0, -8.0])]
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute(
            "INSERT INTO bases (attempt, parent, base_step, adopted_through, void) VALUES (0, NULL, 0, 0, false)"
        )
        connection.executemany(
            "INSERT INTO samples BY NAME SELECT 0 AS attempt, 1 AS step, 0 AS ticket, ? AS rollout_index, "
            "? AS sequence_index, ?::FLOAT[] AS log_probs, log_probs AS entropies",
            samples,
        )
    told = query(
        folder.database,
        "SELECT sequence_index, turn_index, token_index, token_id, log_prob FROM token_log_probs "
        "WHERE rollout_index = 0 ORDER BY ALL",
    )
    assert [tuple(row.values()) for row in told.to_pylist()] == [
        (0, 0, 1, 4, -1.0),
        (0, 1, 0, 5, -2.0),
        (0, 1, 2, 7, -3.0),
        (1, 2, 0, 8, -5.0),
    ]
    kept = [[t for t, own in zip(s.tokens, s.trained, strict=True) if own] for s in sequences_of(rollout)]
    assert kept == [[4, 5, 7], [8]]


def test_a_parameter_that_a_question_does_not_take_is_refused_by_name():
    with pytest.raises(DatabaseError, match=r"question waits has no parameter ticket; it takes: none"):
        find_question("waits").sql({"ticket": 1})
    with pytest.raises(DatabaseError, match=r"rows = 'many': expected INTEGER \(prompts to show\)"):
        find_question("1").sql({"rows": "many"})


def test_an_unknown_question_is_named_with_the_nearest():
    with pytest.raises(DatabaseError, match="did you mean hardest_prompts"):
        find_question("hardest-prompt")


def test_text_in_a_parameter_cannot_leave_its_quotes():
    page = "-- A?\n--\n-- Read.\n--\n-- $metric VARCHAR = 'a': name\n--\n-- x: it\nSELECT $metric AS x;\n"
    sql = parse("01_one.sql", page).sql({"metric": "it's $metric; DROP TABLE t"})
    assert sql == "SELECT 'it''s $metric; DROP TABLE t' AS x;"
    assert duckdb.sql(sql).fetchall() == [("it's $metric; DROP TABLE t",)]


def test_questions_are_numbered_without_gaps_and_are_twenty_or_more():
    assert [question.number for question in all_questions()] == list(range(1, len(all_questions()) + 1))
    assert len(all_questions()) >= 20


def test_every_table_view_and_column_has_a_comment():
    with duckdb.connect() as connection:
        create_all(connection)
        silent = "SELECT relation, column_name FROM schema_columns WHERE comment IS NULL"
        assert connection.execute(silent).fetchall() == []
        assert connection.execute("SELECT relation FROM schema_relations WHERE comment IS NULL").fetchall() == []


def test_the_page_is_made_from_schema_and_questions():
    assert PAGE.read_text("utf-8") == document(), (
        "docs/sql.md is not what schema and questions say; make it again: "
        "python -m agrpo.database.questions.document docs/sql.md"
    )


def test_the_page_has_the_questions_first_with_their_sql_folded():
    questions, _, relations = document().partition("## Tables and views\n")
    folded = re.findall(
        r"<details><summary>The SQL</summary>\n\n```sql\n(.*?)\n```\n\n</details>", questions, re.DOTALL
    )
    assert folded == [question.sql() for question in all_questions()]
    assert questions.count("```sql") == len(folded)
    assert "```" not in relations


def test_wrong_names_are_told_with_the_nearest_and_where_all_are(made_up: Path):
    with pytest.raises(DatabaseError, match=r"(?s)did you mean rollouts.*FROM schema_relations"):
        query(made_up, "FROM rollout")
    with pytest.raises(
        DatabaseError, match=r"(?s)did you mean drop_reason \(in live_step_groups, step_groups, whatif_groups\)"
    ):
        query(made_up, "SELECT dropreason FROM step_groups")
