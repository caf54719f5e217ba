from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agrpo.quickstart.tasks import TASKS
from agrpo.quickstart.tokenizer import CALL, train_tokenizer
from agrpo.tools.formats import tagged

TEXTS = [
    "State the final answer to the following arithmetic problem: 4 + 5 - 2 =",
    "<think>4+5=9;9-2=7</think>7",
    "Sort these numbers in descending order: 14.0, 0.0, 16.0",
    "  naïve café\n\tπ ≈ 3.14159, 数字 🙂  ",
    "",
]
CONVERSATION = [
    {"role": "system", "content": "You add."},
    {"role": "user", "content": "4 + 5 ="},
    {"role": "assistant", "content": "<think>4+5=9</think>9"},
    {"role": "tool", "content": None},
    {"role": "user", "content": "And 2 more?"},
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    demonstrations = [shown for task in TASKS.values() for shown in islice(task.demonstrations(0), 300)]
    return train_tokenizer(text for shown in demonstrations for text in (shown.question.text, shown.completion))


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_reloaded_tokenizer_gives_the_same_ids_and_renders_the_same(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    assert [reloaded.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert _rendered(reloaded, CONVERSATION) == _rendered(tokenizer, CONVERSATION)


def test_a_longer_conversation_begins_with_the_tokens_of_a_shorter_one(tokenizer: PreTrainedTokenizerFast) -> None:
    renderings = [_rendered(tokenizer, CONVERSATION[:turns]) for turns in range(1, len(CONVERSATION) + 1)]
    for shorter, longer in pairwise(renderings):
        assert longer[: len(shorter)] == shorter


def test_a_sampled_answer_and_its_end_are_what_the_template_writes(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = tokenizer.apply_chat_template(CONVERSATION[:2], add_generation_prompt=True, return_dict=False)
    sampled = [*tokenizer.encode("<think>4+5=9</think>9"), tokenizer.eos_token_id]
    assert asked + sampled == _rendered(tokenizer, CONVERSATION[:3])


def test_digits_are_single_tokens_and_decimals_whole_ones(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.encode("4+15=19")] == ["4", "+", "1", "5", "=", "1", "9"]
    assert [tokenizer.decode([token]) for token in tokenizer.encode("14.0, 8.0")] == ["14.0", ", ", "8.0"]


def test_what_follows_the_thinking_can_be_told_apart_after_decoding(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("<|assistant|><think>4+5=9</think>9<|end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>4+5=9</think>9"


def _rendered(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str | None]]) -> list[int]:
    return tokenizer.apply_chat_template(messages, return_dict=False)


def test_tools_and_calls_are_written_as_agrpo_reads_them(tokenizer: PreTrainedTokenizerFast) -> None:
    arguments = {"a": 417, "b": 86}
    call = {"type": "function", "function": {"name": "sub", "arguments": arguments}}
    schema = {"type": "function", "function": {"name": "sub", "parameters": {"properties": {"a": {}, "b": {}}}}}
    messages = [CONVERSATION[1], {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = tokenizer.apply_chat_template(messages, tools=[schema], tokenize=False)
    assert text == (
        "<|system|>sub(a, b)\n<|end|><|user|>4 + 5 =<|end|>"
        '<|assistant|><tool_call>{"name": "sub", "arguments": {"a": 417, "b": 86}}</tool_call><|end|>'
    )
    (read,) = tagged.read(text.partition("<|assistant|>")[2]).calls
    assert (read.name, read.arguments) == ("sub", arguments)


def test_a_policy_that_calls_has_a_token_for_each_mark_of_a_call() -> None:
    ids = train_tokenizer([], CALL).encode("<tool_call>7</tool_call>")
    assert len(ids) == 3
