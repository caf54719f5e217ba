"""What makes an environment, what a model is told of it, and what is refused before a run starts."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from agrpo.environments import factories
from agrpo.environments.factories import bound_tools, kind_at
from agrpo.errors import EnvironmentFault, ToolError, UnfitEnvironment
from tests.environments.worlds import Game, NeedsArguments

HERE = "tests.environments.worlds"


@pytest.mark.spec("A-250")
def test_public_methods_but_reset_and_get_reward_are_tools_as_functions_are():
    kind = kind_at(f"{HERE}:Game")
    assert (kind.cls, kind.class_name, list(kind.tools)) == (Game, "Game", ["guess"])
    function = kind.tools["guess"].schema["function"]
    assert function["description"] == "Guess the number."
    assert function["parameters"]["properties"] == {"value": {"type": "integer", "description": "The guess."}}
    assert (kind.reset_names, kind.reset_needs) == (frozenset({"target"}), frozenset({"target"}))


def test_a_method_is_called_on_the_instance_that_a_rollout_has():
    kind = kind_at(f"{HERE}:Game")
    mine, other = Game(), Game()
    mine.reset(target=3)
    other.reset(target=5)
    assert bound_tools(kind, mine)["guess"].function(value=3) == "right"
    assert (mine.solved, other.solved) == (True, False)


def test_methods_that_await_are_told_apart():
    kind = kind_at(f"{HERE}:Awaiting")
    assert (kind.reset_is_async, kind.reward_is_async, kind.tools["tell"].is_async) == (True, True, True)
    quiet = kind_at(f"{HERE}:Quiet")
    assert (quiet.reset_is_async, quiet.reward_is_async, dict(quiet.tools)) == (False, None, {})


@pytest.mark.parametrize(("name", "cls"), [("small", NeedsArguments), ("untyped_game", Game), ("a_lambda", Game)])
@pytest.mark.spec("A-249", "G-201")
def test_a_factory_is_a_class_or_a_function_that_makes_one(name: str, cls: type[Any]):
    kind = kind_at(f"{HERE}:{name}")
    assert kind.cls is cls
    assert isinstance(kind.factory(), cls)


def test_a_package_offers_an_environment_as_an_entry_point(monkeypatch: pytest.MonkeyPatch):
    entry = EntryPoint(name="guessing", value=f"{HERE}:Game", group="agrpo.environments")
    monkeypatch.setattr(factories, "entry_points", lambda group: [entry])
    assert kind_at("guessing").cls is Game
    with pytest.raises(EnvironmentFault, match=r'"gessing" is no adapter of agrpo and .*; did you mean "guessing"\?'):
        kind_at("gessing")


@pytest.mark.spec("A-251", "G-202")
def test_a_class_without_reset_is_refused_as_a_type_error():
    with pytest.raises(TypeError, match='WithoutReset has no method "reset", which begins every rollout'):
        kind_at(f"{HERE}:WithoutReset")


def test_a_method_that_a_subclass_takes_away_is_no_tool_and_a_prompt_with_a_default_is_left_alone():
    kind = kind_at(f"{HERE}:WithoutGuess")
    assert "guess" in kind_at(f"{HERE}:Game").tools and "guess" not in kind.tools
    assert kind.reset_needs == frozenset()


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("AsksForMore", UnfitEnvironment, 'AsksForMore.get_reward takes "strictly"; it is called without arguments'),
        ("ByPosition", UnfitEnvironment, 'ByPosition.reset takes "target" by position only'),
        (
            "AsksForThePrompt",
            UnfitEnvironment,
            'AsksForThePrompt.reset takes "prompt", which it is never given: it gets the other',
        ),
        (
            "AsksWhichOne",
            UnfitEnvironment,
            'AsksWhichOne.reset takes "environment", which it is never given: it gets the',
        ),
        ("a_number", EnvironmentFault, "is a int; expected a class, or a function"),
        ("awaited_game", EnvironmentFault, "is written with async def"),
        ("NeedsArguments", EnvironmentFault, 'needs "size"; give it in the settings of the factory'),
        ("Gmae", EnvironmentFault, 'has no "Gmae"; did you mean "Game"?'),
        ("UntypedTool", ToolError, 'UntypedTool.look": argument "where" has no type'),
        ("Yielding", ToolError, "yields its result piece by piece"),
    ],
)
def test_what_is_no_environment_is_refused_with_what_is_missing(name: str, kind: type[Exception], told: str):
    with pytest.raises(kind, match=told):
        kind_at(f"{HERE}:{name}")


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(EnvironmentFault, match='there is no module "nowhere"'):
        kind_at("nowhere.envs:Game")
