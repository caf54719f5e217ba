"""The policy: the language model that is trained, and one step of its training. Torch lives here.

`model` loads, `logprobs` reads rows, `update` takes a step, `optimizer` says how far, `digest` and `probe` tell what
came out. Importing any of them raises `MissingPackage`, an `ImportError`, where transformers is too old.
"""

from __future__ import annotations

import importlib.metadata
import re

from agrpo.errors import MissingPackage

OLDEST_TRANSFORMERS = (5, 2)
"""What the specification asks for (A-012)."""


def refuse_old_transformers(found: str) -> None:
    """Raise `MissingPackage` for a version before `OLDEST_TRANSFORMERS`."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST_TRANSFORMERS:
        oldest = "{}.{}.0".format(*OLDEST_TRANSFORMERS)
        raise MissingPackage(
            f"transformers {found} is installed; the policy needs {oldest} or newer: pip install 'transformers>={oldest}'"
        )


refuse_old_transformers(importlib.metadata.version("transformers"))
