"""A safetensors file written one tensor after the other, so that no more than one has to be whole.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of a JSON header, the header, the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agrpo.tensors.whole import Source, Tensors, sources_of

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
"""Names of torch's types in the format."""


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors under their names. `metadata`: of the header, beside that the tensors are torch's."""
    sources = sources_of(tensors)
    # Wide types first, so that every tensor lies at a multiple of its type's size.
    names = sorted(sources, key=lambda name: (-sources[name].dtype.itemsize, name))
    header = _header(names, sources, {"format": "pt", **(metadata or {})})
    with file.open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little"))
        opened.write(header)
        for name in names:
            opened.write(_bytes_of(name, sources[name]))


def fill_from(file: Path, tensors: Tensors) -> None:
    """Fill tensors from a file that has them by their names, one at a time."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as stored:
        for name in tensors:
            tensors.fill(name, stored.get_tensor(name))


def _header(names: list[str], sources: Mapping[str, Source], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        source, begin = sources[name], end
        end += _num_bytes(source)
        kind = TYPES[str(source.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(source.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _num_bytes(source: Source) -> int:
    count = source.dtype.itemsize
    for size in source.shape:
        count *= size
    return count


def _bytes_of(name: str, source: Source) -> memoryview:
    import torch

    tensor = source.make()
    assert (tensor.dtype, tuple(tensor.shape)) == (source.dtype, source.shape), f"{name} is other than its source said"
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
