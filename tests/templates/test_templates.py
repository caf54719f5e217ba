"""Templates for training: they only append, they write what the families' own write, and none is taken for another."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import ModelError
from agrpo.templates import TEMPLATES, template, template_at
from agrpo.templates.recognising import ALIKE, PROBES, Probe, training_template_of
from tests.templates.writing import ASKED, CASES, SCHEMA, own_texts, random_conversation, written

BEGINS_THOUGHT = {
    "qwen3_thinking_training",
    "qwen3_5_training",
    "qwen3_6_training",
    "deepseek_r1_training",
    "deepseek_r1_distill_training",
}
"""Their prompt ends within a thought, which the turn goes on with."""
KNOWN: list[dict[str, Any]] = own_texts()["known"]
STRANGERS: dict[str, dict[str, str]] = own_texts()["strangers"]


def recognised(texts: dict[str, str]) -> str | None:
    """What a template is taken for that writes these texts."""
    named = {id(probe): name for name, probe in PROBES.items()}

    def write(probe: Probe, text: str | None) -> str | None:
        if text is None:
            return texts.get(named[id(probe)])
        return written(text, probe.messages, probe.schemas)

    return training_template_of(write)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['own']}-{known['keywords']}")
def test_what_the_familys_own_template_writes_is_written_where_it_does_not_rewrite(known: dict[str, Any]):
    for name, text in known["texts"].items():
        probe = CASES[name]
        ours = written(template(known["template"]), probe.messages, probe.schemas, **known["keywords"])
        assert (ours != text) is (name in known["rewritten"]), name
    assert set(ALIKE[known["template"]]).isdisjoint(known["rewritten"]) or known["keywords"]


@pytest.mark.spec("G-192")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_the_beginning_of_every_longer_one(name: str):
    for seed in range(40):
        draw = random.Random(seed)
        messages = random_conversation(draw, thinks=name in BEGINS_THOUGHT or draw.random() < 0.5)
        keywords = {"thinking": True} if name == "deepseek_v3_1_training" and "</think>" in str(messages) else {}
        whole = written(template(name), messages, [SCHEMA], asks=False, **keywords)
        for place, message in enumerate(messages):
            if message["role"] == "system" or (place > 0 and messages[place - 1]["role"] == message["role"] == "tool"):
                continue
            if message["role"] == "assistant":
                asked = written(template(name), messages[:place], [SCHEMA], **keywords)
                assert whole.startswith(asked), (seed, place)
            if message["role"] != "tool" and place > 0 and messages[place - 1]["role"] != "system":
                earlier = written(template(name), messages[:place], [SCHEMA], asks=False, **keywords)
                assert whole.startswith(earlier), (seed, place)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", ["<think>\n a \n\n</think>9 ", "a</think>\n\n\n9\n", "\n9 "])
def test_a_turn_is_written_as_it_was_sampled_whatever_follows(name: str, said: str):
    keywords = {"thinking": True} if name == "deepseek_v3_1_training" else {}
    asked = written(template(name), [ASKED], **keywords)
    later = written(template(name), [ASKED, {"role": "assistant", "content": said}, ASKED], **keywords)
    if "</think>" in said or not (name in BEGINS_THOUGHT or keywords):
        assert said in later
        assert later.startswith(asked)
        sampled = said.removeprefix("<think>\n") if asked.endswith("<think>\n") else said
        sampled = said.removeprefix("<think>") if asked.endswith("<think>") else sampled
        assert later.startswith(asked + sampled + "<")


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known['own']}-{known['keywords']}")
def test_a_familys_own_template_is_recognised(known: dict[str, Any]):
    if not known["keywords"]:
        assert recognised(known["texts"]) == known["template"]


@pytest.mark.parametrize("name", STRANGERS)
def test_a_template_of_another_family_is_taken_for_none(name: str):
    assert recognised(STRANGERS[name]) is None


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_character_more_is_another_template(name: str):
    own = {probe: written(template(name), PROBES[probe].messages, PROBES[probe].schemas) for probe in ALIKE[name]}
    assert recognised(own) == name
    for probe in ALIKE[name]:
        assert recognised({**own, probe: own[probe] + " "}) is None
        assert recognised({other: text for other, text in own.items() if other != probe}) is None


def test_every_template_has_probes_and_no_two_write_the_same_of_all():
    assert ALIKE.keys() == set(TEMPLATES)
    texts = {
        name: tuple(written(template(name), probe.messages, probe.schemas) for probe in _of_objects())
        for name in TEMPLATES
    }
    assert len(set(texts.values())) == len(TEMPLATES)


def test_a_name_that_is_neither_template_nor_file_is_told_with_the_nearest(tmp_path):
    with pytest.raises(ModelError, match=r'model\.chat_template: "qwen3_trainin" .*; did you mean "qwen3_training"'):
        template_at("qwen3_trainin")
    (tmp_path / "mine.jinja").write_text("{{ messages }}", "utf-8")
    assert template_at(str(tmp_path / "mine.jinja")) == "{{ messages }}"
    (tmp_path / "odd.jinja").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ModelError, match="it is no text in UTF-8"):
        template_at(str(tmp_path / "odd.jinja"))


def _of_objects() -> list[Probe]:
    return [probe for name, probe in PROBES.items() if "in text" not in name]


def test_the_page_names_every_template():
    page = (Path(__file__).parents[2] / "docs" / "templates.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+_training)`", " ".join(rows))) == sorted(TEMPLATES)
