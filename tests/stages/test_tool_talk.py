"""How models of each family are shown tools and told results, all of it found out from their chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer

from agrpo.errors import ToolError
from agrpo.records.sample import sequences_of
from agrpo.stages import tool_talk
from agrpo.templates import template
from tests.conftest import CHAT_TEMPLATE
from tests.stages.families import ASKS, FAMILIES, QWEN_CALL
from tests.stages.playing import QUESTION, Stage, call_of, script, tokenizer_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TAKES_NO_RESULT = (
    "{%- for m in messages -%}{%- if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif -%}"
    "{{ m.role + ': ' + m.content + '<|end|>' }}{%- endfor -%}"
)
SHOWS_NO_FORMAT = "{{ tools | tojson if tools else '' }}" + TAKES_NO_RESULT

DECLARED = {
    "start_anchor": "<|assistant|>",
    "fields": {
        "content": {},
        "tool_calls": {
            "open": "[[",
            "close": "]]",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}
"""Calls between double brackets, as a tokenizer may declare them."""


@pytest.mark.spec("A-243")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_calls_a_tool_and_goes_on_from_the_tokens_it_wrote(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    family = FAMILIES[name]
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end))
    assert stage.talk.appends
    advised = [message.partition("model.chat_template = ")[2].split('"')[1] for message in caplog.messages]
    assert advised == ([] if family.recognised is None else [family.recognised])
    assert stage.talk.shown_by_template is family.shown_by_template
    (end,) = stage.renderer.encode(family.end)
    first = [*stage.renderer.encode(family.call), end]
    (rollout,) = stage.play(script(first, [*stage.renderer.encode("It is 9."), end]))
    assert [message["content"] for message in rollout.completion[1:]] == ["9", "It is 9."]
    assert rollout.tool_failure_count == 0
    shown = stage.renderer.tokenizer.decode(rollout.turns[0].prompt_ids)
    assert "add" in shown and "4 + 5 =" in shown
    kept = rollout.turns[0].prompt_ids + first
    assert stage.renderer.tokenizer.decode(rollout.turns[1].prompt_ids[len(kept) :]) == family.between
    assert len(sequences_of(rollout)) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_what_stands_between_turns_is_what_the_template_renders_whatever_tools_answer(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    family = FAMILIES[name]
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end))
    (end,) = stage.renderer.encode(family.end)
    answers = [
        "9",
        "two\nlines",
        ' spaced "quoted" ',
        "",
        "<tool_response>",
        "Dulcimer 0.",
        "1 & 2",
        '{"a": [1]}',
        "é\\n",
    ]
    fields = {"role": "tool", "name": "add"}
    turns = [
        [{**fields, "tool_call_id": f"call{place:05d}", "content": text} for place, text in enumerate(texts)]
        for texts in [[answer] for answer in answers] + [[answer, "x", answer] for answer in answers]
    ]
    quick = [stage.talk.following([5, end], [*QUESTION, *results], len(results)) for results in turns]
    monkeypatch.setattr(tool_talk, "_is_plain", lambda content: False)
    assert quick == [stage.talk.following([5, end], [*QUESTION, *results], len(results)) for results in turns]


def test_a_call_in_a_thought_that_the_prompt_began_is_not_made(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    family = FAMILIES["qwen3"]
    template = family.template.removesuffix(ASKS) + ASKS.replace("assistant\\n", "assistant\\n<think>\\n")
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, template, *family.tokens, end=family.end))
    (end,) = stage.renderer.encode(family.end)
    lines = [f"maybe {QWEN_CALL}</think>{call_of('add', a=2, b=2)}", f"maybe {call_of('add', a=1, b=1)}"]
    (rollout,) = stage.play(script(*([*stage.renderer.encode(line), end] for line in lines)))
    assert stage.renderer.tokenizer.decode(rollout.turns[1].prompt_ids).endswith("<think>\n")
    assert [message["content"] for message in rollout.completion if message["role"] == "tool"] == ["4"]
    assert (rollout.stop_reason, rollout.tool_call_count) == ("stop", 1)


def test_tools_that_the_template_does_not_show_stand_in_the_system_message(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
):
    family = FAMILIES["smollm2"]
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end), "add")
    system = {"role": "system", "content": "Be brief."}
    shown = stage.renderer.tokenizer.decode(stage.talk.prompt([system, {"role": "user", "content": "4+5?"}]))
    assert shown.startswith("<|im_start|>system\nBe brief.\n\nYou can call tools.")
    assert '"description": "Add two whole numbers."' in shown


def test_results_of_one_turn_are_one_message_of_the_user_where_the_template_has_no_other(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
):
    family = FAMILIES["gemma3"]
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end))
    (end,) = stage.renderer.encode(family.end)
    calls = call_of("add", a=1, b=1) + call_of("add", a=2, b=2)
    (rollout,) = stage.play(script([*stage.renderer.encode(calls), end], [end]))
    told = stage.renderer.tokenizer.decode(rollout.turns[1].prompt_ids)
    assert "user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n4\n</tool_response><end_of_turn>" in told


def test_a_template_that_shows_tools_and_no_way_to_call_them_needs_the_setting(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
):
    model = tokenizer_with(tiny_tokenizer, tmp_path, SHOWS_NO_FORMAT)
    with pytest.raises(ToolError, match=r"set tools\.call_format to one of tagged, llama, deepseek, gemma, mistral"):
        Stage(model)
    (rollout,) = Stage(model, call_format="tagged").play(script(call_of("add", a=4, b=5), "9"))
    assert rollout.tool_failure_count == 0


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("chat_template", ["", "_training"])
def test_calls_are_read_as_agrpo_told_the_model_to_write_them(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path, name: str, chat_template: str
):
    family, ours = FAMILIES[name], f"{name}{chat_template}" if chat_template else None
    model = tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end)
    with pytest.raises(ToolError, match=r'tools\.call_format = "gemma": .* to write calls as "tagged"; set that'):
        Stage(model, call_format="gemma", chat_template=ours)
    stage = Stage(model, call_format="tagged", chat_template=ours)
    assert [call.name for call in stage.talk.read(stage.renderer.encode(family.call)).calls] == ["add"]


def test_of_several_templates_the_one_for_tools_says_how_calls_are_written(
    tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
):
    family = FAMILIES["qwen3"]
    model = tokenizer_with(tiny_tokenizer, tmp_path, family.template, *family.tokens, end=family.end)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = {"default": TAKES_NO_RESULT, "tool_use": family.template}
    tokenizer.save_pretrained(model)
    stage = Stage(model)
    assert isinstance(stage.renderer.tokenizer.chat_template, dict)
    assert stage.talk.shown_by_template and stage.talk.appends
    (call,) = stage.talk.read(stage.renderer.encode(QWEN_CALL)).calls
    assert call.name == "add"


def test_of_several_templates_a_familys_are_recognised(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    family, known = FAMILIES["qwen3"], template("qwen3_training")
    model = tokenizer_with(tiny_tokenizer, tmp_path, known, *family.tokens, end=family.end)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    for templates, expected in (({"default": known, "tool_use": known}, "qwen3_training"), ({"rag": known}, None)):
        tokenizer.chat_template = templates
        tokenizer.save_pretrained(tmp_path / str(expected))
        assert (
            Stage(tmp_path / str(expected), "add", chat_template="qwen3_training").renderer.training_template()
            == expected
        )


def test_what_the_tokenizer_declares_is_read_as_declared(tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    stage = Stage(tokenizer_with(tiny_tokenizer, tmp_path, CHAT_TEMPLATE))
    stage.renderer.tokenizer.response_template = DECLARED
    declared = type(stage.talk)(stage.renderer, stage.tools)
    turn = declared.read(stage.renderer.encode('So: [[{"name": "add", "arguments": {"a": 4, "b": 5}}]]'))
    assert [(call.name, dict(call.arguments)) for call in turn.calls] == [("add", {"a": 4, "b": 5})]
    assert declared.read(stage.renderer.encode("9")).calls == []
    (odd,) = declared.read(stage.renderer.encode("So: [[add 4 and 5]]")).calls
    assert odd.problem is not None and "cannot be read as the model's tokenizer declares" in odd.problem
