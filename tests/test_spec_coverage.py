"""The list of claimed rows is read from the documents and from the tests' source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spec_coverage import DOCUMENTS, Coverage, as_json, as_text, coverage, folded

ROWS = "| ID | Requirement |\n|---|---|\n| A-001 | x |\n| A-002 | x |\n| A-003 | x |\n| A-004 | x |\n"
RECIPES = "| **P-005** | `dapo` |\n| P-005.test | x |\n| F-1 | fixture |\n"


@pytest.fixture
def read(tmp_path: Path):
    """Coverage of four small documents by a test module with this text."""

    def _read(test: str) -> Coverage:
        spec, tests = tmp_path / "spec", tmp_path / "tests"
        spec.mkdir()
        tests.mkdir()
        texts = dict(zip(DOCUMENTS, (ROWS, "", RECIPES, "### K01 A group\n### K02 A prompt\n"), strict=True))
        for name, text in texts.items():
            (spec / name).write_text(text)
        (tests / "test_x.py").write_text(test)
        return coverage(spec, tests)

    return _read


def test_ids_are_table_rows_with_their_suffixes_and_case_headings(read):
    assert read("").documents == {
        "async_grpo.md": ["A-001", "A-002", "A-003", "A-004"],
        "grpo.md": [],
        "papers.md": ["P-005", "P-005.test"],
        "cases.md": ["K01", "K02"],
    }


def test_marks_on_functions_modules_and_parameters_are_claims(read):
    found = read(
        "import pytest\n"
        'pytestmark = [pytest.mark.slow, pytest.mark.spec("A-001")]\n'
        '@pytest.mark.spec("A-002", "K02")\n'
        "def test_a(): ...\n"
        'CASES = [pytest.param(1, marks=pytest.mark.spec("P-005.test"))]\n'
    )
    assert found.places == {
        "A-001": ["tests/test_x.py:2"],
        "A-002": ["tests/test_x.py:3"],
        "K02": ["tests/test_x.py:3"],
        "P-005.test": ["tests/test_x.py:5"],
    }
    assert found.problems == []


def test_a_range_claims_every_row_from_its_first_to_its_last(read):
    found = read('import pytest\n@pytest.mark.spec("A-002..A-004")\ndef test_a(): ...\n')
    assert sorted(found.places) == ["A-002", "A-003", "A-004"]
    assert found.unclaimed("async_grpo.md") == ["A-001"]


@pytest.mark.parametrize("words", ["A-099", "A-001..A-099", "A-001..K02", "P-005.tset"])
def test_an_id_that_no_document_holds_is_a_problem(read, words):
    found = read(f'import pytest\n@pytest.mark.spec("{words}")\ndef test_a(): ...\n')
    assert found.problems == [f"tests/test_x.py:2: no document holds {words}"]


def test_an_id_that_is_computed_is_a_problem(read):
    found = read("import pytest\n@pytest.mark.spec(*IDS)\ndef test_a(): ...\n")
    assert found.problems == ["tests/test_x.py:2: *IDS is not a literal id; write the ids out, or a range"]


def test_neighbours_are_folded_and_pairs_are_not():
    document = ["A-001", "A-002", "A-003", "A-004", "A-005", "A-006"]
    assert folded(["A-001", "A-002", "A-003", "A-005", "A-006"], document) == ["A-001..A-003", "A-005", "A-006"]


def test_both_formats_say_the_same(read):
    found = read('import pytest\n@pytest.mark.spec("A-001")\ndef test_a(): ...\n')
    assert "async_grpo.md     1 of 4 rows claimed by a test\n  unclaimed: A-002..A-004" in as_text(found)
    document = json.loads(as_json(found))["documents"]["async_grpo.md"]
    assert document == {
        "rows": 4,
        "claimed": {"A-001": ["tests/test_x.py:2"]},
        "unclaimed": ["A-002", "A-003", "A-004"],
    }


def test_the_tests_of_agrpo_claim_rows_that_exist():
    root = Path(__file__).parent.parent
    assert coverage(root / "docs" / "spec", root / "tests").problems == []
