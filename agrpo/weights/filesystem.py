"""Weights that travel as a folder: the learner writes it, an engine checks it before it loads."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.errors import StoreError
from agrpo.tensors import digest_of, digest_of_tensor, published_tensors, tied_head
from agrpo.tensors.file import save_tensors

if TYPE_CHECKING:
    from safetensors import safe_open
    from torch import Tensor, nn

    from agrpo.tensors import TiedHead

WEIGHTS = "model.safetensors"
TIED = "tied.safetensors"
"""The output head of a model whose head is its embedding, under the head's own name. vLLM alone needs it: its packed copy
of the head is only made anew where the file that it reads names the head."""


def write_weights(folder: Path, model: nn.Module, *, with_head: bool = False) -> None:
    """Write `model.safetensors` under the model's state-dict names, a tied weight once, an adapter merged.

    `with_head`: and `tied.safetensors`, where the output head is tied.
    """
    write_tensors(folder, published_tensors(model), tied_head(model) if with_head else None)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], head: TiedHead | None = None) -> None:
    """Write the tensors of a whole model, and its tied head apart."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, folder / WEIGHTS)
    if head is not None:
        save_tensors({head.name: tensors[head.tied_to]}, folder / TIED, {head.name: head.tied_to})


def check_weights(folder: Path, digest: str) -> None:
    """Raise `StoreError` unless the folder's tensors have this digest: a torn or a wrong folder is never loaded.

    An output head beside them must be the tensor that it is tied to.
    """
    _check_tensors(folder, digest)
    if (folder / TIED).exists():
        _check_head(folder)


def _check_tensors(folder: Path, digest: str) -> None:
    found = digest_in(folder / WEIGHTS)
    if found != digest:
        raise StoreError(
            f"{folder / WEIGHTS} holds weights with digest {found}, expected {digest}; the file is damaged or of another "
            "version: it must not be loaded"
        )


def _check_head(folder: Path) -> None:
    file = folder / TIED
    with opened(file) as stored, opened(folder / WEIGHTS) as weights:
        tied_to = stored.metadata() or {}
        for name in stored.keys():
            other = tied_to.get(name)
            if other not in weights.keys():
                raise StoreError(
                    f"{file} does not say to which of the weights {name} is tied; the file is damaged: it must not be loaded"
                )
            if digest_of_tensor(stored.get_tensor(name)) != digest_of_tensor(weights.get_tensor(other)):
                raise StoreError(
                    f"{file} holds {name} with other bits than {other}, to which it is tied; the file is damaged or of another "
                    "version: it must not be loaded"
                )


def digest_in(file: Path) -> str:
    """Digest of a file's tensors. Raises `StoreError` where it is absent or torn."""
    return digest_of(digests_in(file))


def digests_in(file: Path) -> dict[str, str]:
    """Digest by tensor of a file. Raises `StoreError` where it is absent or torn."""
    with opened(file) as stored:
        return {name: digest_of_tensor(stored.get_tensor(name)) for name in stored.keys()}


@contextmanager
def opened(file: Path) -> Generator[safe_open]:
    """The file, open for reading. Raises `StoreError` where it is absent or torn."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as stored:
            yield stored
    except FileNotFoundError:
        raise _absent(file) from None
    except RuntimeError:
        # safetensors opens a file twice, and says so where it is gone the second time.
        if file.exists():
            raise
        raise _absent(file) from None
    except (SafetensorError, OSError) as error:
        raise StoreError(
            f"{file} cannot be read as weights ({error}); the file is torn: it must not be loaded"
        ) from error


def _absent(file: Path) -> StoreError:
    return StoreError(f"{file}: no such file; expected the weights of a published version")
