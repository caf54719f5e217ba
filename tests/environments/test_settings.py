"""Settings of factories: given by name, to each instance its own, and refused where nothing takes them."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from agrpo.config import EnvironmentsSection, FactorySection, RunConfig, resolve
from agrpo.environments import load_environments
from agrpo.environments.checking import found_environments
from agrpo.environments.factories import ADAPTERS, kind_at
from agrpo.errors import ConfigError, EnvironmentFault
from tests.environments.worlds import Sized
from tests.stages.walk import settings

HERE = "tests.environments.worlds"


def test_a_factory_is_given_its_settings_and_every_instance_its_own():
    kind = kind_at(f"{HERE}:Sized", settings={"size": 3, "names": ["a"]})
    first, second = kind.factory(), kind.factory()
    assert kind.cls is Sized and (first.size, first.names) == (3, ["a"])
    assert first.names is not second.names


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("Sized", {"sise": 3}, r'Sized" has no setting "sise"; did you mean "size"\?'),
        ("Sized", {}, r'Sized" needs "size"; give it in the settings of the factory'),
        ("Game", {"size": 3}, r'Game" has no setting "size"; it takes none'),
    ],
)
def test_settings_that_a_factory_does_not_take_are_refused_by_name(name: str, given: dict[str, Any], told: str):
    with pytest.raises(EnvironmentFault, match=told):
        kind_at(f"{HERE}:{name}", settings=given)


def test_each_of_several_environments_has_settings_of_its_own(tiny_model: Any):
    large = {"factory": f"{HERE}:Sized", "settings": {"size": 9}}
    tree = settings(tiny_model, tiny_model, tiny_model)
    tree["environments"] = {"factories": {"game": f"{HERE}:Game", "large": large}}
    config = RunConfig.build(resolve(values=tree))
    kinds = load_environments(config.environments)
    assert kinds["large"].factory().size == 9 and kinds["game"].class_name == "Game"
    recorded = json.loads(json.dumps(config.settings.tree))["environments"]["factories"]
    assert recorded == {"game": f"{HERE}:Game", "large": large}
    assert RunConfig.build(resolve(values=config.settings.tree)).environments == config.environments


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"settings": {"size": 3}}, "environments.settings: says what an environment is like, and there is none"),
        (
            {"factories": {"a": "b:C"}, "settings": {"size": 3}},
            "environments.settings: are those of environments.factory",
        ),
        ({"factories": {"a": {"factory": "b:C", "setting": {}}}}, "environments.factories.a.setting: unknown setting"),
        ({"factories": {"a": {"settings": {}}}}, "environments.factories.a.factory: missing"),
        ({"factories": {"a": "b c"}}, "environments.factories.a.factory = 'b c': string should match pattern"),
    ],
)
def test_a_table_of_settings_that_nothing_takes_is_refused(tiny_model: Any, section: dict[str, Any], told: str):
    tree = {**settings(tiny_model, tiny_model, tiny_model), "environments": section}
    with pytest.raises(ConfigError, match=told):
        RunConfig.build(resolve(values=tree))


def test_a_tool_that_describes_itself_is_told_as_it_says():
    (tool,) = kind_at(f"{HERE}:Described").tools.values()
    assert tool.schema["function"] == {"name": "look", "description": "Look.", "parameters": {}}
    assert (tool.required, tool.is_async) == (frozenset({"where"}), True)


def test_an_adapter_is_a_part_whose_settings_are_checked():
    assert ADAPTERS.names() == ["openenv"]
    with pytest.raises(EnvironmentFault, match=r"settings\.url = 'here': string should match"):
        kind_at("openenv", settings={"url": "here"})
    with pytest.raises(EnvironmentFault, match=r'settings\.urll: unknown setting; did you mean "url"\?'):
        kind_at("openenv", settings={"url": "http://here", "urll": "x"})


@pytest.mark.skipif(importlib.util.find_spec("openenv") is not None, reason="OpenEnv is installed")
def test_an_adapter_whose_package_is_missing_says_how_to_install_it():
    section = EnvironmentsSection(
        factories={"game": FactorySection(factory="openenv", settings={"url": "http://here"})}
    )
    kinds, (problem,) = found_environments(section)
    assert kinds == {} and problem.startswith('environments.factories.game: environment "openenv" needs OpenEnv')
    assert 'pip install "agrpo[openenv]"' in problem
