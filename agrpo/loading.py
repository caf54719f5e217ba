"""Which class of transformers loads a checkpoint, and one model at a time.

While transformers loads one, it keeps state in the process that a second thread would disturb. Seen with stages as
threads: a tied head was "missing" and drawn anew. Whoever loads a model holds `LOADING`.
"""

from __future__ import annotations

import threading
from typing import Any

LOADING = threading.Lock()


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
