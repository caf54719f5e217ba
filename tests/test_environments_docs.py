"""What docs/environments.md shows can be run, and it says what has to be said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import EnvironmentsSection, ToolsSection
from agrpo.environments.factories import GROUP, kind_at

PAGE = (Path(__file__).parent.parent / "docs" / "environments.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_class_shown_is_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (shown,) = blocks("python")
    (tmp_path / "shown_game.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    kind = kind_at("shown_game:GuessNumber")
    game = kind.factory()
    assert game.reset(number=23) == "Find my number between 0 and 19."
    assert [game.guess(value) for value in (2, 4, 3)] == ["higher", "lower", "right"]
    assert game.get_reward() == 1.0
    assert list(kind.tools) == ["guess"]


def test_the_tables_shown_are_settings():
    first, plugin, several = map(tomllib.loads, blocks("toml"))
    assert EnvironmentsSection(**first["environments"]).are_given
    assert ToolsSection(**first["tools"]).timeout_seconds == 5.0
    assert sorted(EnvironmentsSection(**several["environments"]).factories) == ["calculate", "game"]
    (named,) = plugin["project"]["entry-points"][GROUP]
    entries: dict[str, Any] = {"factory": named}
    assert EnvironmentsSection(**entries).factory == named


@pytest.mark.spec("A-262", "G-210", "G-211")
def test_the_page_says_how_rollouts_start_alike_and_where_other_environments_fit():
    text = " ".join(PAGE.split())
    assert "draw what differs from a column, which all of a group have in common" in text
    assert all(name in text for name in ("OpenEnv", "OpenReward", "Harbor"))
