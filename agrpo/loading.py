"""What users name, loaded: a module of theirs, and a checkpoint by the class of transformers that wrote it.

One model is loaded at a time. While transformers loads one, it keeps state in the process that a second thread would
disturb. Seen with stages as threads: a tied head was "missing" and drawn anew. Whoever loads a model holds `LOADING`.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType
from typing import Any

from agrpo.errors import AgrpoError, words_of

LOADING = threading.Lock()


def module_named(name: str, path: str, refuse: type[AgrpoError], what: str = "") -> ModuleType:
    """The module `name` of what a user named as `path`. Raises `refuse` where there is none, or where importing it fails.

    `what`: what the path stands for, with a space behind it; the message begins with it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise refuse(
                f'{what}"{path}": there is no module "{error.name}"; modules are looked for in {os.getcwd()}, in PYTHONPATH and '
                "among the installed packages"
            ) from None
        raise refuse(f'{what}"{path}": importing {name} failed: {error}; install what it needs') from error
    except (Exception, SystemExit) as error:
        raise refuse(f'{what}"{path}": importing {name} failed: {words_of(error)}') from error


def loader_of(path: str, *, revision: str | None, trust_remote_code: bool) -> Any:
    """The auto class whose `from_pretrained` gives the model that the checkpoint was written by.

    That of a vision-language model keeps its parts that see, so that what is written of it later is whole again; some of
    those could be loaded as a language model alone too. Raises what transformers raises where there is no configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto

    auto_config: Any = AutoConfig
    config = auto_config.from_pretrained(path, revision=revision, trust_remote_code=trust_remote_code)
    sees_images = set(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values())
    written_by = set(getattr(config, "architectures", None) or [])
    return AutoModelForImageTextToText if written_by & sees_images else AutoModelForCausalLM
