from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agrpo.config import ModelSection
from agrpo.errors import PromptError
from agrpo.prompts import PromptOrder, prompt_of
from agrpo.prompts.files import Files
from agrpo.records.arrow import group_from_arrow, group_to_arrow
from agrpo.records.group import RolloutGroup
from agrpo.stages.rendering import Renderer

ROWS = [{"prompt": [{"role": "user", "content": f"question {number}"}], "answer": number} for number in range(10)]


def orders(seed: int, *, shuffle: bool = True, epochs: int = 3) -> list[list[int]]:
    order = PromptOrder(ROWS, seed=seed, shuffle=shuffle)
    return [[order.prompt(10 * epoch + place).row_index for place in range(10)] for epoch in range(epochs)]


def test_every_epoch_asks_every_prompt_once_in_an_order_of_its_own():
    epochs = orders(7)
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.spec("K09")
def test_a_resumed_run_goes_on_in_the_present_epochs_order():
    first, second, third = orders(7)
    resumed = PromptOrder(ROWS, seed=7, shuffle=True)
    assert [resumed.prompt(number).row_index for number in range(14, 20)] == second[4:]
    assert [resumed.prompt(number).row_index for number in range(20, 30)] == third
    assert first[4:] != second[4:]


def test_equal_seeds_ask_alike_and_others_do_not():
    assert orders(7) == orders(7) != orders(8)


def test_unshuffled_prompts_keep_the_order_of_the_rows():
    assert orders(7, shuffle=False) == [list(range(10))] * 3


def test_a_prompt_knows_its_row_and_epoch_and_keeps_its_id():
    order = PromptOrder(ROWS, seed=7, shuffle=False)
    first, again = order.prompt(3), order.prompt(23)
    assert (first.row_index, first.epoch, again.epoch) == (3, 0, 2)
    assert first.id == again.id != order.prompt(4).id
    assert first.facts == {"answer": 3}


def test_no_rows_are_refused():
    with pytest.raises(PromptError, match="at least one prompt"):
        PromptOrder([], seed=1, shuffle=True)


@pytest.mark.spec("A-009", "A-019")
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("2+3?", "expected a list of messages"),
        ([], "expected a list of messages"),
        ([{"text": "2+3?"}], 'lacks "role" or "content"'),
        ([{"role": "user", "content": [{"type": "image"}]}], "content is list; only text is supported"),
    ],
)
def test_a_prompt_that_is_no_conversation_in_text_is_refused(prompt: str | Sequence[dict], said: str):
    with pytest.raises(PromptError, match=f"row 4.*{said}"):
        prompt_of({"prompt": prompt}, row_index=4)


@pytest.mark.spec("A-019")
def test_a_prompt_that_shows_something_is_refused():
    messages = [{"role": "user", "content": "What is this?"}]
    for column, shown in (("image", "cat.png"), ("images", [b"\x89PNG"])):
        with pytest.raises(ValueError, match=f'row 4 has something in "{column}"; only text is supported'):
            prompt_of({"prompt": messages, column: shown}, row_index=4)
    assert prompt_of({"prompt": messages, "image": None, "images": []}, row_index=4).messages == messages


def test_the_environment_is_no_fact_and_makes_another_prompt():
    plain = prompt_of({**ROWS[0]}, row_index=0)
    placed = prompt_of({**ROWS[0], "environment": "maze"}, row_index=0)
    assert (plain.environment, placed.environment) == (None, "maze")
    assert plain.facts == placed.facts
    assert plain.id != placed.id


def test_half_a_surrogate_pair_in_a_row_is_a_question_mark_to_the_policy_to_hooks_and_in_the_record(
    tmp_path: Path, tiny_model: Path
):
    half = "a\ud800"
    row = {"prompt": [{"role": "user", "content": half}], "tags": [half, {half: "\U0001f600"}], "environment": half}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    order = PromptOrder(Files(path=str(tmp_path / "rows.jsonl"))(), seed=7, shuffle=True)
    prompt = order.prompt(0)
    assert prompt.messages == [{"role": "user", "content": "a?"}]
    assert prompt.facts == {"tags": ["a?", {"a?": "\U0001f600"}]}
    assert order.row(0) == {"prompt": prompt.messages, "environment": "a?", **prompt.facts}
    assert prompt.id == prompt_of(order.row(0), row_index=0).id
    asked = Renderer(ModelSection(path=str(tiny_model)))
    assert "a?" in asked.tokenizer.decode(asked.render(prompt.messages))
    group = RolloutGroup(ticket=0, prompt=prompt, rollouts=[], model_version=0)
    assert group_from_arrow(group_to_arrow(group)).prompt == prompt


def test_a_row_whose_texts_stand_in_a_tuple_has_the_id_of_what_is_recorded():
    given, recorded = (prompt_of({**ROWS[0], "pair": pair}, row_index=0) for pair in (("a\ud800", 1), ["a?", 1]))
    assert given.id == recorded.id
