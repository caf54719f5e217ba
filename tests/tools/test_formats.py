"""Reading calls: each family's way to write them, and what becomes of text that only looks like one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agrpo.tools.formats import CallFormat, ReadTurn, deepseek, gemma, llama, mistral, tagged

ADD = ("add", {"a": 1, "b": 2})

AB = '{"a": 1, "b": 2}'
AB_QUOTED = AB.replace('"', '\\"')

DEEPSEEK = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1, "b": 2}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)
DEEPSEEK_31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>'
    "say<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
XML = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n[2]\n</parameter>\n</function>\n</tool_call>"


def calls_of(turn: ReadTurn) -> list[tuple[str, Any]]:
    assert [call.problem for call in turn.calls] == [None] * len(turn.calls)
    return [(call.name, dict(call.arguments)) for call in turn.calls]


@pytest.mark.parametrize(
    ("read", "text", "content", "calls"),
    [
        (tagged.read, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "", [ADD]),
        (
            tagged.read,
            'So: <tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
            "So:",
            [ADD],
        ),
        (
            tagged.read,
            '<tool_call>[{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "say", "arguments": {}}]</tool_call>',
            "",
            [ADD, ("say", {})],
        ),
        (tagged.read, XML, "", [("add", {"a": "1", "b": "[2]"})]),
        (tagged.read, XML.replace("\n[2]\n", "\n\n [2]"), "", [("add", {"a": "1", "b": "\n [2]"})]),
        (llama.read, '{"name": "add", "parameters": {"a": 1, "b": 2}}', "", [ADD]),
        (llama.read, '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}', "", [ADD]),
        (
            llama.read,
            '{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "say", "parameters": {}}',
            "",
            [ADD, ("say", {})],
        ),
        (llama.read, '{"function": "add", "parameters": {"a": 1, "b": 2}}', "", [ADD]),
        (deepseek.read, f"Let me see.{DEEPSEEK}", "Let me see.", [ADD]),
        (deepseek.read, DEEPSEEK_31, "", [ADD, ("say", {})]),
        (gemma.read, "<start_function_call>call:add{a:1,b:2}<end_function_call>", "", [ADD]),
        (
            gemma.read,
            '<start_function_call>call:say{text:<escape>a {b:1} "c"<escape>,to:[{x:1}]}<end_function_call>',
            "",
            [("say", {"text": 'a {b:1} "c"', "to": [{"x": 1}]})],
        ),
        (
            mistral.read,
            'So: [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "abcdefghi"}]',
            "So:",
            [ADD],
        ),
        (
            mistral.read,
            f'[TOOL_CALLS][{{"name": "add", "arguments": {AB}}}, {{"name": "say"}}]',
            "",
            [ADD, ("say", {})],
        ),
        (mistral.read, f"[TOOL_CALLS]add[ARGS]{AB}[TOOL_CALLS]say[ARGS]{{}}", "", [ADD, ("say", {})]),
        (mistral.read, f"So: [TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{AB} done", "So:  done", [ADD]),
        (mistral.read, f"[TOOL_CALLS]add{AB}", "", [ADD]),
        (mistral.read, f'[TOOL_CALLS]add[ARGS]"{AB_QUOTED}"', "", [ADD]),
        (
            mistral.read,
            '[TOOL_CALLS]say[ARGS]{"text": "[TOOL_CALLS]add[ARGS]{}"}',
            "",
            [("say", {"text": "[TOOL_CALLS]add[ARGS]{}"})],
        ),
    ],
)
def test_calls_are_read_in_the_order_written(
    read: CallFormat, text: str, content: str, calls: list[tuple[str, dict[str, Any]]]
):
    turn = read(text)
    assert calls_of(turn) == calls
    assert turn.content == content


@pytest.mark.parametrize("read", [tagged.read, llama.read, deepseek.read, gemma.read, mistral.read])
@pytest.mark.parametrize("text", ["", "12", "The answer is {12}.", '{"answer": 12}', "[1, 2]"])
def test_text_that_calls_nothing_stays_text(read: CallFormat, text: str):
    assert read(text) == ReadTurn(content=text, calls=[])


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (tagged.read, "<tool_call>add(1, 2)</tool_call>", "it is no JSON"),
        (tagged.read, '<tool_call>{"name": "add", "arguments": {}}', "it does not end with </tool_call>"),
        (tagged.read, '<tool_call>{"arguments": {}}</tool_call>', 'expected "name"'),
        (tagged.read, '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "expected the arguments to be"),
        (tagged.read, '<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>', "the arguments are no JSON"),
        (tagged.read, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "NaN is no number of JSON"),
        (tagged.read, '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', "1e999 is too large"),
        (tagged.read, '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "half a surrogate pair"),
        (tagged.read, f"<tool_call>{'[' * 100_000}</tool_call>", "cannot be read"),
        (tagged.read, "<tool_call>12</tool_call>", "expected a JSON object"),
        (llama.read, '{"name": "add", "parameters": {"a": 1', "it is no JSON"),
        (llama.read, "<|python_tag|>print(1)", "expected a JSON object"),
        (deepseek.read, "<｜tool▁calls▁begin｜>add", "it does not begin with"),
        (deepseek.read, DEEPSEEK.replace("```json", "```json {"), "its arguments are no JSON"),
        (deepseek.read, DEEPSEEK.partition("<｜tool▁call▁end｜>")[0], "it does not end with"),
        (gemma.read, "<start_function_call>add(1, 2)<end_function_call>", "expected call:name"),
        (gemma.read, "<start_function_call>call:add{a:b}<end_function_call>", "its arguments cannot be read"),
        (mistral.read, "[TOOL_CALLS]", "it is no JSON"),
        (mistral.read, "[TOOL_CALLS] [1]", "expected a JSON object with a name"),
        (mistral.read, "[TOOL_CALLS] []", "expected a JSON object with a name"),
        (mistral.read, "[TOOL_CALLS]add", "its arguments are no JSON"),
        (mistral.read, '[TOOL_CALLS]add[ARGS]{"a": NaN}', "NaN is no number of JSON"),
        (mistral.read, "[TOOL_CALLS]add[ARGS][1, 2]", "expected the arguments to be a JSON object"),
        (mistral.read, f"[TOOL_CALLS]{'[' * 100_000}", "cannot be read"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(read: CallFormat, text: str, why: str):
    (call,) = read(text).calls
    assert call.problem is not None
    assert why in call.problem
    assert len(call.problem) < 400


def test_calls_that_are_only_thought_of_are_not_made():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    assert tagged.read(f"<think>maybe {call}</think>12").calls == []
    assert tagged.read(f"<think>maybe {call}").calls == []
    turn = tagged.read(f"<think>maybe {call}</think>\n\n{call}")
    assert calls_of(turn) == [ADD]
    assert turn.content == f"<think>maybe {call}</think>"


QUOTING = {"text": "<think> and </think>"}
QUOTED = [
    (tagged.read, '<tool_call>{"name": "say", "arguments": {"text": "<think> and </think>"}}</tool_call>'),
    (tagged.read, "<tool_call><function=say><parameter=text><think> and </think></parameter></function></tool_call>"),
    (llama.read, '{"name": "say", "parameters": {"text": "<think> and </think>"}}'),
    (deepseek.read, DEEPSEEK.replace("add", "say").replace('{"a": 1, "b": 2}', '{"text": "<think> and </think>"}')),
    (gemma.read, "<start_function_call>call:say{text:<escape><think> and </think><escape>}<end_function_call>"),
]


@pytest.mark.parametrize(("read", "call"), QUOTED)
def test_the_marks_of_a_thought_in_an_argument_are_the_arguments(read: CallFormat, call: str):
    assert calls_of(read(call)) == [("say", QUOTING)]
    assert calls_of(read(f"<think>I say it.</think>{call}")) == [("say", QUOTING)]
    assert calls_of(read(f"I say it.</think>{call}", thinking=True)) == [("say", QUOTING)]


@pytest.mark.parametrize(("read", "call"), QUOTED)
def test_a_thought_that_the_prompt_opened_makes_no_call(read: CallFormat, call: str):
    for text in (call, f"maybe {call}", f"maybe {call} or not"):
        assert read(text, thinking=True) == ReadTurn(content=text, calls=[])


def test_calls_between_two_thoughts_are_made_and_all_stays_in_its_order():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    turn = tagged.read(f"<think>a</think>So: {call}<think>b {call}</think> and {call}<think>c {call}")
    assert calls_of(turn) == [ADD, ADD]
    assert turn.content == f"<think>a</think>So: <think>b {call}</think> and <think>c {call}"


def test_a_thought_may_name_the_marks_of_a_call():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    turn = tagged.read(f"I write <tool_call> and the JSON.</think>{call}", thinking=True)
    assert calls_of(turn) == [ADD]


def test_mistral_thinks_between_marks_of_its_own():
    call = f"[TOOL_CALLS]add[ARGS]{AB}"
    turn = mistral.read(f"[THINK]I write [TOOL_CALLS] and {call}.[/THINK]{call}")
    assert calls_of(turn) == [ADD]
    assert mistral.read(f"[THINK]maybe {call}").calls == []
    assert mistral.read(f"maybe {call}[/THINK]9", thinking=True).calls == []
    quoting = '[TOOL_CALLS]say[ARGS]{"text": "[THINK] and [/THINK]"}'
    assert calls_of(mistral.read(quoting)) == [("say", {"text": "[THINK] and [/THINK]"})]


def test_many_calls_of_one_turn_are_read_at_once():
    began = time.process_time()
    assert len(mistral.read("[TOOL_CALLS]" * 4000).calls) == 4000
    assert time.process_time() - began < 1


def test_a_call_that_cannot_be_read_does_not_hide_the_next_one():
    (broken, added) = mistral.read(f"[TOOL_CALLS]say[ARGS]{{oh[TOOL_CALLS]add[ARGS]{AB}").calls
    assert broken.name == "say" and broken.problem is not None and broken.problem.endswith("say[ARGS]{oh")
    assert (added.name, dict(added.arguments)) == ADD


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (mistral.read, f"[TOOL_CALLS]add[ARGS]{'[TOOL_CALLS' * 8000}"),
        (mistral.read, f"[TOOL_CALLS]add[ARGS]{'{' * 8000}"),
        (tagged.read, f"<tool_call><function=add>{'<parameter=a>x' * 8000}</function></tool_call>"),
        (tagged.read, f"<tool_call><function=add>{'<parameter=' * 8000}</function></tool_call>"),
        (deepseek.read, DEEPSEEK.replace('\n{"a": 1, "b": 2}\n```', "\n" * 20_000)),
    ],
)
def test_a_long_turn_that_opens_and_never_closes_is_read_at_once(read: CallFormat, text: str):
    began = time.process_time()
    assert len(read(text).calls) == 1
    assert time.process_time() - began < 1
