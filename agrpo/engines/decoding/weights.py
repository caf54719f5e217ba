"""Published weights: opened, and matched with a network's own tensors."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from agrpo.errors import EngineError
from agrpo.tensors import outside_text

WEIGHTS_FILE = "model.safetensors"
NUM_LISTED = 8
"""Names an error lists before it only counts them."""


@contextmanager
def opened(folder: Path) -> Generator[safe_open]:
    """The folder's weights, open for reading. What goes wrong with the file in the block becomes an `EngineError`."""
    file = folder / WEIGHTS_FILE
    try:
        with safe_open(file, framework="pt") as stored:
            yield stored
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"the weights {file} cannot be read: {error}; expected the file that the learner published"
        ) from error


def matched(network: nn.Module, stored: safe_open) -> dict[str, Tensor]:
    """The network's own tensor for each stored name to copy. Raises `EngineError` listing names and shapes that differ.

    One name of tied weights is enough; buffers may be absent, and parts that read no text keep what they have.
    """
    shapes = {name: list(stored.get_slice(name).get_shape()) for name in stored.keys()}
    slots = _slots(network)
    _check(slots, shapes)
    return {next(name for name in slot.names if name in shapes): slot.tensor for slot in slots if slot.named_in(shapes)}


@dataclass(slots=True)
class _Slot:
    """One tensor of the network, under all its names."""

    tensor: Tensor
    names: list[str] = field(default_factory=list[str])

    def named_in(self, stored: Mapping[str, object]) -> bool:
        return any(name in stored for name in self.names)


def _slots(network: nn.Module) -> list[_Slot]:
    slots: dict[int, _Slot] = {}
    outside = outside_text(network)
    for name, tensor in network.state_dict(keep_vars=True).items():
        if name not in outside:
            slots.setdefault(id(tensor), _Slot(tensor)).names.append(name)
    return list(slots.values())


def _check(slots: Sequence[_Slot], shapes: Mapping[str, list[int]]) -> None:
    known = {name: list(slot.tensor.shape) for slot in slots for name in slot.names}
    required = [slot for slot in slots if isinstance(slot.tensor, nn.Parameter)]
    problems = {
        "missing": [slot.names[0] for slot in required if not slot.named_in(shapes)],
        "not of this model": sorted(shapes.keys() - known.keys()),
        "of another shape": [
            f"{name} {shape} (expected {known[name]})"
            for name, shape in shapes.items()
            if known.get(name, shape) != shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {_listed(names)}" for what, names in problems.items() if names)
        raise EngineError(f"the weights are not this model's. {listed}. Were they published for another model.path?")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NUM_LISTED} more" if len(names) > NUM_LISTED else ""
    return ", ".join(names[:NUM_LISTED]) + more
