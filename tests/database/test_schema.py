from __future__ import annotations

import duckdb
import pytest

from agrpo.database.schema import create_all, table_schemas


@pytest.fixture
def empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    create_all(connection)
    return connection


def test_every_table_and_view_says_what_it_is(empty):
    sql = """
        SELECT table_name FROM duckdb_tables() WHERE comment IS NULL
        UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal AND comment IS NULL
    """
    assert empty.execute(sql).fetchall() == []


def test_no_table_has_a_key_or_an_index(empty):
    kinds = "SELECT DISTINCT constraint_type FROM duckdb_constraints()"
    assert empty.execute(kinds).fetchall() == [("NOT NULL",)]
    assert empty.execute("FROM duckdb_indexes()").fetchall() == []


def test_every_view_of_an_empty_database_is_empty(empty):
    views = [name for (name,) in empty.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()]
    assert {"lineage", "live_steps", "live_metrics", "group_status", "step_metrics"} <= {*views}
    told_of_itself = {"schema_relations", "schema_columns"}
    assert [view for view in {*views} - told_of_itself if empty.execute(f"FROM {view}").fetchall()] == []


def test_token_lists_and_times_have_their_arrow_types():
    turns = table_schemas()["turns"]
    assert str(turns.field("output_log_probs").type.value_type) == "float"
    assert str(turns.field("top_ids").type.value_type.value_type) == "int32"
    assert str(table_schemas()["groups"].field("claimed_at").type).startswith("timestamp[us, tz=")
