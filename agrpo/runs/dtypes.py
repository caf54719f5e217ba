"""The type of weights that a run settles on where it shall be the checkpoint's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agrpo.config import ModelSection
from agrpo.errors import ConfigError
from agrpo.runs.model_files import read_object

KNOWN = ("float32", "bfloat16", "float16")


def checkpoint_dtype(model: ModelSection) -> str | None:
    """What the configuration of the checkpoint says its weights are in. None: it cannot be had.

    Raises `ConfigError` where it says nothing, or a type that no run trains in, or cannot be read.
    """
    file = _configuration(model)
    if file is None:
        return None
    document = read_object(file)
    inner: Any = document.get("text_config")
    parts = [document, inner if isinstance(inner, dict) else {}]
    said = next((part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)), None)
    if said not in KNOWN:
        what = f'says "{said}"' if said else "says nothing"
        raise ConfigError(
            f'model.dtype = "auto": the configuration of {model.path} {what} of the type of its weights; set one of '
            f"{', '.join(KNOWN)}"
        )
    return said


def _configuration(model: ModelSection) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    folder = Path(model.path)
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    try:
        return Path(hf_hub_download(model.path, "config.json", revision=model.revision))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError):
        return None  # the check of the model says why
