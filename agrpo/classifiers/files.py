"""Whether a model is a classifier of one output, told from its configuration before any process holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from agrpo.classifiers import Source
from agrpo.errors import RewardError

CONFIG = "config.json"
HEAD = "ForSequenceClassification"
WEIGHTS = ("*.safetensors", "*.bin")
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""What configurations call the longest text that the model has positions for."""
BEHIND_PAD = (
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "longformer"),
    *("data2vec-text", "ibert", "luke", "mpnet"),
)
"""Kinds of models (`model_type`) whose first position is `pad_token_id` + 1: those before it are no text's."""
DECIDING = (
    CONFIG,
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.py",
)
"""Files of a folder, beside its weights, by which a text is worth what it is."""
DEFAULT_LABELS = 2
"""Outputs of a classifier whose configuration does not say how many it has (transformers)."""


def read_configuration(source: Source) -> dict[str, Any]:
    """The model's `config.json`. Raises `RewardError` that says what is there instead."""
    file = _configuration_file(source)
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RewardError(f"path: {file} cannot be read as JSON: {error}; save or download the model again") from None
    if not isinstance(document, dict):
        raise RewardError(
            f"path: {file} holds a JSON {type(document).__name__}; expected an object. Save the model again"
        )
    return cast("dict[str, Any]", document)


def deciding_files(source: Source) -> dict[str, Path]:
    """Files by which a text is worth what it is, each by the knob that names its folder; none of a hub id."""
    folders = {"path": (source.path, (*DECIDING, *WEIGHTS)), "tokenizer": (source.tokenizer, DECIDING)}
    return {
        f"{knob}/{file.name}": file
        for knob, (folder, patterns) in folders.items()
        for pattern in (patterns if folder is not None else ())
        for file in Path(str(folder)).glob(pattern)
        if file.is_file()
    }


def head_problems(source: Source, document: dict[str, Any]) -> list[str]:
    """A sentence where the model has another head (G-012), or more outputs than one (G-011)."""
    kinds = [str(kind) for kind in document.get("architectures") or []]
    classifies = any(kind.endswith(HEAD) for kind in kinds)
    brings_code = f"AutoModel{HEAD}" in (document.get("auto_map") or {})
    if not classifies and not brings_code:
        return [
            f"path: {source.path} is {', '.join(kinds) or 'a model that names no architecture'}; expected a sequence classifier "
            f"(…{HEAD}), which gives a number for a text. A model that writes text is asked through http_judge"
        ]
    if not classifies and not source.trust_remote_code:
        return [
            f"path: {source.path} is a classifier by code of its own ({', '.join(kinds) or 'auto_map'}); set "
            "trust_remote_code = true if you trust its repository"
        ]
    labels = _num_labels(document)
    if labels != 1:
        return [
            f"path: {source.path} has num_labels = {labels}; expected 1: of several outputs none is the reward. Save the model "
            "with num_labels = 1, or write a reward function that weighs them"
        ]
    return []


def positions_of(document: dict[str, Any]) -> int | None:
    """Tokens of the longest text that the model has positions for; None where its configuration names none."""
    inner = {**document, **(document.get("text_config") or {})}
    found = [inner[name] for name in POSITIONS if isinstance(inner.get(name), int) and inner[name] > 0]
    if not found:
        return None
    if inner.get("model_type") not in BEHIND_PAD:
        return found[0]
    pad = inner.get("pad_token_id")
    return found[0] - (1 if pad is None else pad) - 1


def length_problems(max_length: int | None, document: dict[str, Any]) -> list[str]:
    """A sentence where texts may be longer than the model has positions for."""
    positions = positions_of(document)
    if max_length is None or positions is None or max_length <= positions:
        return []
    return [
        f"max_length = {max_length}: the model has positions for {positions} tokens; set {positions} or less, or leave it out"
    ]


def _num_labels(document: dict[str, Any]) -> int:
    labels = document.get("id2label")
    if isinstance(labels, dict):
        return len(cast("dict[str, str]", labels))
    return document.get("num_labels", DEFAULT_LABELS)


def _configuration_file(source: Source) -> Path:
    folder = Path(source.path)
    if not folder.is_dir():
        if source.path.startswith((".", "/", "~")):
            raise RewardError(f"path: no folder {source.path}; give a folder written by save_pretrained, or a hub id")
        return _fetched(source)
    if not (folder / CONFIG).is_file():
        raise RewardError(f"path: {folder} has no {CONFIG}; save the classifier and its tokenizer there")
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        raise RewardError(f"path: {folder} has no weights ({', '.join(WEIGHTS)}); save the classifier there")
    return folder / CONFIG


def _fetched(source: Source) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source.path, CONFIG, revision=source.revision))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RewardError(
            f'path: "{source.path}" is no folder, and no model of that id can be had from the hub: {reason}'
        ) from None
