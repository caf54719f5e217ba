"""What is written of a version: whole weights or an adapter, and the digest that its record names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.records.progress import WeightsForm, WeightsReady
from agrpo.tensors import digest_of, digest_of_tensor, published_tensors, tied_head
from agrpo.weights.filesystem import check_weights, write_tensors
from agrpo.weights.lora import adapter_digest, check_adapter, write_adapter

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A model's weights, ready to be written."""

    form: WeightsForm
    digest: str
    """Of what is written."""
    write: Callable[[Path], None]
    """Fill a folder."""


def to_publish(model: nn.Module, form: WeightsForm, *, with_head: bool) -> Publication:
    """The model in a form; whole weights have an adapter merged, in the type they are served in.

    `with_head`: and a tied head apart.
    """
    if form is WeightsForm.ADAPTER:
        return Publication(form=form, digest=adapter_digest(model), write=lambda folder: write_adapter(folder, model))
    tensors, head = published_tensors(model), tied_head(model) if with_head else None
    digest = digest_of({name: digest_of_tensor(tensor) for name, tensor in tensors.items()})
    return Publication(form=form, digest=digest, write=lambda folder: write_tensors(folder, tensors, head))


def check_published(folder: Path, ready: WeightsReady) -> None:
    """Raise `StoreError` unless the folder holds what the version's record says: nothing else is ever loaded."""
    check = check_adapter if ready.form is WeightsForm.ADAPTER else check_weights
    check(folder, ready.digest)
