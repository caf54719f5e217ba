"""What docs/environments.md shows can be run, and it says what has to be said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agrpo.config import EnvironmentsSection, ToolsSection
from agrpo.environments.adapters.openenv import OpenEnv
from agrpo.environments.factories import GROUP, bound_tools, kind_at
from agrpo.errors import EnvironmentFault
from agrpo.registry import knobs_of

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


PLUGINS = (Path(__file__).parent.parent / "docs" / "environment_plugins.md").read_text("utf-8")


def test_the_part_shown_is_a_factory_with_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (shown,) = re.findall(r"```python\n(.*?)```", PLUGINS, re.DOTALL)
    first, _ = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", PLUGINS, re.DOTALL))
    (tmp_path / "shown_lookup.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    kind = kind_at("shown_lookup:Dictionary", settings=first["environments"]["settings"])
    instance = kind.factory()
    assert (kind.class_name, instance.reset(word="hello")) == ("Lookup", " The word is hello.")
    assert bound_tools(kind, instance)["look_up"].function(word="hello") == "A greeting."
    with pytest.raises(EnvironmentFault, match=r'settings\.wrods: unknown setting; did you mean "words"\?'):
        kind_at("shown_lookup:Dictionary", settings={"wrods": {}})


def test_the_page_of_plugins_has_every_setting_of_openenv():
    told = {name for name in re.findall(r"^\| `(\w+)` \|", PLUGINS, re.MULTILINE)}
    assert told == set(knobs_of(OpenEnv))


@pytest.mark.spec("G-211")
def test_the_page_of_plugins_names_what_is_written_and_what_is_not():
    assert all(name in PLUGINS for name in ("OpenEnv", "ORS (OpenReward)", "Harbor", "verifiers"))
