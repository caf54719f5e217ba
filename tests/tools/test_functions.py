"""Functions as tools: what a model is told of one, and what is refused before a run starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agrpo.config import RunConfig, ToolsSection, resolve
from agrpo.errors import ConfigError, ToolError
from agrpo.runs.checks import check
from agrpo.tools import check_tools, load_tools
from agrpo.tools.functions import tool_at
from tests.stages.playing import tokenizer_with
from tests.stages.walk import settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

HERE = "tests.tools.functions"


@pytest.mark.spec("A-238", "G-191")
def test_types_and_docstring_make_the_schema():
    tools = load_tools(ToolsSection(functions=[f"{HERE}:add", f"{HERE}:wait_a_moment"]))
    assert list(tools) == ["add", "wait_a_moment"]
    assert (tools["add"].is_async, tools["wait_a_moment"].is_async) == (False, True)
    function = tools["add"].schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two whole numbers.")
    assert function["parameters"]["properties"]["b"] == {"type": "integer", "description": "The second number."}
    assert function["parameters"]["required"] == ["a", "b"]
    assert tools["wait_a_moment"].required == frozenset()


@pytest.mark.spec("A-239")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ad", 'has no "ad"; did you mean "add"?'),
        ("an_object", "is a Callable; a tool is a function"),
        ("a_partial", "is a partial; a tool is a function"),
        ("Callable", "is a type; a tool is a function"),
        ("a_lambda", "is <lambda>; define it with def"),
        ("in_pieces", "yields its result piece by piece"),
        ("of_any_number", r'takes "\*numbers: \'?int\'?"; a model calls with names alone'),
        ("without_type", 'argument "a" has no type'),
        ("without_return_type", "does not say what it returns"),
        ("without_docstring", "has no docstring"),
        ("without_description", "the docstring has no description for the argument 'a'"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_is_missing(name: str, told: str):
    with pytest.raises(ToolError, match=told):
        tool_at(f"{HERE}:{name}")


def test_a_module_that_is_not_there_or_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_tools.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolError, match='there is no module "nowhere"'):
        tool_at("nowhere.tools:add")
    with pytest.raises(ToolError, match="importing broken_tools failed: ZeroDivisionError"):
        tool_at("broken_tools:add")


def test_all_unfit_tools_are_told_of_before_anything_starts(tiny_model: Path, tmp_path: Path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [{"role": "user", "content": "1+1 ="}]}')
    tools = {"functions": [f"{HERE}:add", f"{HERE}:without_docstring", "nowhere:add_more"]}
    problems = check(RunConfig.build(resolve(values=settings(tiny_model, prompts, tmp_path, tools=tools))))
    assert [problem.partition(":")[0] for problem in problems] == ["tools.functions"] * 2
    assert check_tools(ToolsSection(functions=[f"{HERE}:add"])) == []


@pytest.mark.parametrize(
    ("template", "call_format", "told"),
    [
        ("{{ tools | tojson if tools else '' }}", None, "shows none of the ways to write a call that agrpo reads"),
        ("{{ tools | tojson if tools else '' }}", "tagged", None),
        ("{{ raise_exception('no tools') if tools else '' }}", None, "take a model whose template can be given tools"),
        ("", None, None),
    ],
)
def test_a_model_that_cannot_call_the_tools_is_told_of_before_anything_starts(
    tiny_model: Path,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    *,
    template: str,
    call_format: str | None,
    told: str | None,
):
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    says = "{%- for m in messages -%}{{ m.role + ': ' + m.content + '<|end|>' }}{%- endfor -%}"
    tokenizer_with(tiny_tokenizer, model, template + says)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [{"role": "user", "content": "1+1 ="}]}')
    tools = {"functions": [f"{HERE}:add"]} | ({} if call_format is None else {"call_format": call_format})
    problems = check(RunConfig.build(resolve(values=settings(model, prompts, tmp_path, tools=tools))))
    assert len(problems) == (told is not None)
    assert not told or (problems[0].startswith("tools: ") and told in problems[0])


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ({"functions": ["a.b:add", "c.d:add"]}, 'tools.functions: two functions are called "add"'),
        ({"functions": ["add"]}, "tools.functions.0 = 'add': string should match pattern"),
        ({"timeout_seconds": 3.0}, "tools.timeout_seconds: says how functions are called, and there is none"),
        ({"max_calls_per_turn": 3}, "tools.max_calls_per_turn: says how functions are called, and there is none"),
        ({"functions": ["a:b"], "max_calls_per_turn": 0}, "tools.max_calls_per_turn = 0: "),
        ({"functions": ["a:b"], "max_tool_calling_iterations": 0}, "tools.max_tool_calling_iterations = 0: "),
        ({"functions": ["a:b"], "timeout_seconds": 60.0}, "tools.timeout_seconds = 60: a call may take as long"),
        ({"functions": ["a:b"], "max_iterations": 3}, "tools.max_iterations: unknown setting"),
        ({"functions": ["a:b"], "call_format": "lama"}, "tools.call_format = 'lama'"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(tiny_model: Path, tmp_path: Path, tools: dict[str, object], told: str):
    with pytest.raises(ConfigError) as refused:
        RunConfig.build(resolve(values=settings(tiny_model, tmp_path / "prompts", tmp_path, tools=tools)))
    assert [problem for problem in refused.value.problems if problem.startswith(told)], refused.value.problems
