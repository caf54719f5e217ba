"""An engine over the tiny model, and other weights for it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from agrpo.config import ModelSection
from agrpo.engines import Engine, engines

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@pytest.fixture
def serve(tiny_model: Path) -> Callable[..., object]:
    """`serve(body, **knobs)`: what `body(engine)` gives, with the tiny model's weights loaded as version 0."""

    def served(body: Callable[[Engine], Awaitable[T]], **knobs: object) -> T:
        async def main() -> T:
            engine = engines.build("transformers", {"threads": 1, **knobs})(ModelSection(path=str(tiny_model)))
            try:
                await engine.load(tiny_model, 0)
                return await body(engine)
            finally:
                await engine.close()

        return asyncio.run(main())

    return served


@pytest.fixture(scope="session")
def vocabulary(tiny_model: Path) -> int:
    return json.loads((tiny_model / "config.json").read_text())["vocab_size"]


@pytest.fixture
def changed_weights(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """`changed_weights(change)`: a folder with the tiny model's tensors after `change(tensors)`."""
    from safetensors.torch import load_file, save_file

    def changed(change: Callable[[dict[str, Tensor]], object]) -> Path:
        tensors = load_file(tiny_model / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return changed


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are looked at every few hundredths of a second."""
    for name in ("LOOK_SECONDS", "CARE_SECONDS"):
        monkeypatch.setattr(f"agrpo.engines.serving_vllm.fleet.{name}", 0.05)


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a server ends after a fifth of a second, whatever it has said by then."""
    for page in ("replica", "folders"):
        monkeypatch.setattr(f"agrpo.engines.serving_vllm.{page}.LOOK_SECONDS", 0.2)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a request."""
    monkeypatch.setattr("agrpo.engines.serving_vllm.engine.pauses", lambda: itertools.repeat(0.01))
