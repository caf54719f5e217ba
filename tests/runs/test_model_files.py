"""A model's folder whose files are not what they are called is refused by the file's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agrpo.errors import ConfigError
from agrpo.runs.checks import check
from agrpo.runs.memory.shape import read_shape
from agrpo.runs.model_files import model_problems
from agrpo.runs.publishing import settled
from tests.runs.made import a_config, a_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def test_a_whole_folder_has_no_problems(tmp_path: Path):
    assert model_problems(a_model(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("config.json", "{", "{folder}/config.json is not JSON: Expecting property name"),
        ("config.json", "[]", "{folder}/config.json holds a JSON list; expected an object"),
        ("config.json", '{"text_config": 1}', '"text_config" in {folder}/config.json is a JSON int'),
        ("model.safetensors", "x", "{folder}/model.safetensors cannot be read as safetensors: "),
        (
            "model.safetensors",
            POINTER,
            "{folder}/model.safetensors is a Git LFS pointer and not the file itself; run `git lfs",
        ),
        ("tokenizer.json", POINTER, "{folder}/tokenizer.json is a Git LFS pointer"),
        ("tokenizer.json", "{}", "{folder}/tokenizer.json holds no tokenizer: "),
        (
            "tokenizer_config.json",
            "{}",
            "the tokenizer in {folder} has no chat template, neither chat_template.jinja nor",
        ),
        ("tokenizer_config.json", "", "{folder}/tokenizer_config.json is not JSON: "),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}',
            "{folder}/model.safetensors.index.json lists 1 files that are not there: model-1.safetensors;",
        ),
    ],
)
def test_a_file_that_is_not_what_it_is_called_is_named(tmp_path: Path, file: str, text: str, told: str):
    config = a_config(tmp_path)
    (tmp_path / "model" / file).write_text(text)
    (problem,) = check(config)
    assert problem.startswith("model.path: " + told.replace("{folder}", f"{tmp_path}/model"))


def test_a_folder_without_a_vocabulary_is_refused_and_one_of_another_kind_is_not(tmp_path: Path):
    folder = a_model(tmp_path)
    (folder / "tokenizer.json").unlink()
    (problem,) = model_problems(folder)
    assert problem.startswith(
        f"model.path: {folder} has no tokenizer: no tokenizer.json, tokenizer.model or vocabulary"
    )
    (folder / "tokenizer.model").write_bytes(b"pieces")
    assert model_problems(folder) == []


def test_a_chat_template_may_be_a_file_of_its_own(tmp_path: Path):
    folder = a_model(tmp_path)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert model_problems(folder) == []


def test_a_configuration_that_is_none_is_told_where_its_type_is_asked_for(tmp_path: Path):
    config = a_config(tmp_path, model={"dtype": "auto"})
    (tmp_path / "model" / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"model\.path: \S+/config\.json is not JSON"):
        settled(config)


def test_widths_that_are_no_numbers_leave_the_plan_without_a_shape(tmp_path: Path):
    config = a_config(tmp_path)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"hidden_size": "32", "num_hidden_layers": [2]}))
    assert read_shape(config.model) is None
