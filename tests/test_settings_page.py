"""docs/settings.md is what the settings are checked by, and leaves none out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.config.document import ORDER, document, table_document, values_taken
from agrpo.config.run import ROOMS
from agrpo.config.sections import SECTIONS
from agrpo.errors import UnknownName
from agrpo.registry import Registry, knobs_of

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "settings.md"


def rows(text: str) -> dict[str, list[str]]:
    """Cells by setting: what it takes, default, meaning."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_page_is_made_from_the_code():
    assert PAGE.read_text("utf-8") == document(), (
        "docs/settings.md is not what the settings are; make it again: python -m agrpo.config.document docs/settings.md"
    )


def test_every_table_of_a_runs_file_is_there():
    assert {*ORDER} == {*SECTIONS, *ROOMS, "rewards", "filters"}


@pytest.mark.parametrize("table", SECTIONS)
def test_every_setting_of_a_table_is_there_with_a_meaning(table: str):
    found = rows(table_document(table))
    assert [*found] == knobs_of(SECTIONS[table])
    assert [name for name, cells in found.items() if not cells[-1]] == []


@pytest.mark.parametrize("table", [*ROOMS, "rewards"])
def test_every_part_is_there_by_its_name_with_its_settings(table: str):
    registry = Registry(ROOMS[table][0] if table in ROOMS else "agrpo.rewards")
    text = table_document(table)
    for name in registry.names():
        part = text.partition(f'### {table}.name = "{name}"')[2].partition("\n###")[0]
        assert part
        assert [*rows(part)] == knobs_of(registry[name])
    assert [name for name, cells in rows(text).items() if not cells[-1]] == []


def test_limits_and_defaults_are_in_words():
    engine, model = rows(table_document("engine")), rows(table_document("model"))
    assert engine["num_generations"][:2] == ["an integer of at least 1", "`8`"]
    assert engine["top_p"][:2] == ["a number above 0 and of at most 1", "`1.0`"]
    assert engine["replicas"][:2] == ["an integer from 1 to 64", "`1`"]
    assert engine["base_urls"][:2] == ["a list, each text", "`[]`"]
    assert model["path"][:2] == ["text", "**required**"]
    assert model["activation_checkpointing"][:2] == ["true or false", "–"]
    assert rows(table_document("optimizer"))["betas"][0] == "a list of 2, each a number from 0 to 1"
    assert values_taken({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}, {"type": "null"}]}) == (
        '`"all"`, or an integer of at least 1'
    )


def test_an_unknown_table_is_told_with_the_nearest():
    with pytest.raises(UnknownName, match=r'no table is called "engin"; did you mean "engine"\?'):
        table_document("engin")


def test_the_command_prints_one_table():
    command = [sys.executable, "-m", "agrpo", "settings", "packing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, table_document("packing"))


def test_every_setting_that_users_of_other_trainers_are_sent_to_is_one():
    page = (DOCS / "coming_from_trl.md").read_text("utf-8")
    named = [found for found in re.findall(r"`([a-z]+)\.([a-z_]+)`", page) if found[0] in ORDER]
    assert len(named) > 20
    known = {
        (table, name) for table in ORDER for name in [*rows(table_document(table)), *(["name"] * (table in ROOMS))]
    }
    assert {*named} - known == set()
