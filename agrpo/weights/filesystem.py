"""Weights that travel as a folder: the learner writes it, an engine checks it before it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import StoreError
from agrpo.tensors import digest_of, digest_of_tensor, owned_tensors

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = "model.safetensors"


def write_weights(folder: Path, model: nn.Module) -> None:
    """Write `model.safetensors` under the model's state-dict names, a tied weight once."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in owned_tensors(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def check_weights(folder: Path, digest: str) -> None:
    """Raise `StoreError` unless the folder's tensors have this digest: a torn or a wrong folder is never loaded."""
    found = _digest_in(folder / WEIGHTS)
    if found != digest:
        raise StoreError(
            f"{folder / WEIGHTS} holds weights with digest {found}, expected {digest}; the file is damaged or of another "
            "version: it must not be loaded"
        )


def _digest_in(file: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as stored:
            return digest_of({name: digest_of_tensor(stored.get_tensor(name)) for name in stored.keys()})
    except FileNotFoundError:
        raise StoreError(f"{file}: no such file; expected the weights of a published version") from None
    except (SafetensorError, OSError) as error:
        raise StoreError(
            f"{file} cannot be read as weights ({error}); the file is torn: it must not be loaded"
        ) from error
