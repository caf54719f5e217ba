"""The files of a model's folder, held to be what they are called, before a run begins.

Loading the tokenizer as a run does would take seconds, most of them to import transformers; its files are looked at instead.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from agrpo.errors import ConfigError

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
INDEX, TEMPLATE = "model.safetensors.index.json", "chat_template.jinja"
POINTER = b"version https://git-lfs.github.com/spec/"
"""What a file begins with that Git LFS has not fetched."""
VOCABULARIES = (TOKENIZER, "tekken.json", "*.model", "*vocab*", "*.tiktoken", "*.spm", "*.bpe")
"""Files that a tokenizer is made of, one at least."""
WITHOUT_VOCABULARY = ("ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer")
"""Tokenizers of bytes or code points, which need no file."""


def model_problems(folder: Path, *, needs_template: bool = True) -> list[str]:
    """A sentence for each file that is missing, or is not what it is called. The folder exists.

    `needs_template`: whether messages are rendered by the tokenizer's own chat template.
    """
    names = {entry.name for entry in folder.iterdir()}
    missing = [name for name in (CONFIG, TOKENIZER_CONFIG) if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("*.safetensors")
    if missing:
        return [f"model.path: {folder} has no {', no '.join(missing)}; save model and tokenizer there"]
    pointers = [name for name in sorted(names) if _is_pointer(folder / name)]
    if pointers:
        others = f", as are {len(pointers) - 1} others" if len(pointers) > 1 else ""
        return [
            f"model.path: {folder / pointers[0]} is a Git LFS pointer and not the file itself{others}; run `git lfs pull` there"
        ]
    problems = [*configuration_problems(folder), *_weights_problems(folder, names)]
    return [*problems, *_tokenizer_problems(folder, names, needs_template=needs_template)]


def configuration_problems(folder: Path) -> list[str]:
    """What keeps `config.json` from being read; nothing where there is none."""
    if not (folder / CONFIG).is_file():
        return []
    try:
        document = read_object(folder / CONFIG)
    except ConfigError as error:
        return error.problems
    inner = document.get("text_config")
    if inner is not None and not isinstance(inner, dict):
        kind = type(inner).__name__
        return [
            f'model.path: "text_config" in {folder / CONFIG} is a JSON {kind}; expected an object. Save the model again'
        ]
    return []


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object. Raises `ConfigError` that names the file and what is wrong with it."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"model.path: {file} is not JSON: {error}; save or download the model again") from None
    if not isinstance(document, dict):
        raise ConfigError(
            f"model.path: {file} holds a JSON {type(document).__name__}; expected an object. Save or download the model again"
        )
    return cast("dict[str, Any]", document)


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(POINTER)) == POINTER
    except OSError:  # a folder, or unreadable: whoever reads it says so
        return False


def _weights_problems(folder: Path, names: AbstractSet[str]) -> list[str]:
    from safetensors import SafetensorError, safe_open

    problems: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (OSError, SafetensorError) as error:
            problems.append(
                f"model.path: {file} cannot be read as safetensors: {error}; save or download the model again"
            )
    if INDEX not in names:
        return problems
    try:
        shards = read_object(folder / INDEX).get("weight_map")
    except ConfigError as error:
        return [*problems, *error.problems]
    lacking = sorted({str(shard) for shard in shards.values()} - names) if isinstance(shards, dict) else []
    if lacking:
        problems.append(
            f"model.path: {folder / INDEX} lists {len(lacking)} files that are not there: {', '.join(lacking[:3])}"
            f"{', …' if len(lacking) > 3 else ''}; download the model again"
        )
    return problems


def _tokenizer_problems(folder: Path, names: AbstractSet[str], *, needs_template: bool) -> list[str]:
    try:
        config = read_object(folder / TOKENIZER_CONFIG)
    except ConfigError as error:
        return error.problems
    if config.get("auto_map"):
        return []  # its own code says which files it reads
    problems: list[str] = []
    if TOKENIZER in names:
        problems += _unloadable(folder / TOKENIZER)
    elif config.get("tokenizer_class") not in WITHOUT_VOCABULARY and not any(
        fnmatchcase(name, pattern) for name in names for pattern in VOCABULARIES
    ):
        problems.append(
            f"model.path: {folder} has no tokenizer: no {TOKENIZER}, tokenizer.model or vocabulary; save the tokenizer there"
        )
    if needs_template and not config.get("chat_template") and TEMPLATE not in names:
        problems.append(
            f"model.path: the tokenizer in {folder} has no chat template, neither {TEMPLATE} nor chat_template in "
            f"{TOKENIZER_CONFIG}, so messages cannot be rendered; use an instruct model, save a chat template with it, or set "
            "model.chat_template"
        )
    return problems


def _unloadable(file: Path) -> list[str]:
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        return [f"model.path: {file} holds no tokenizer: {error}; save or download it again"]
    return []
