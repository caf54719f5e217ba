"""Weights over NCCL, by vLLM's own trainer engine: packed broadcasts, one parameter after the other.

Written against vLLM 0.32, `vllm/distributed/weight_transfer/nccl_engine.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agrpo.errors import MissingPackage
from agrpo.tensors.whole import sources_of
from agrpo.weights.sender import Servers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INSTALL = "the learner needs vLLM in its own environment to send weights over NCCL: pip install 'agrpo[vllm]'"


class NcclSender:
    """A `Sender`. The learner's process is rank 0; the device is the one it trains on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._engine: Any = None
        self._source: Any = None

    def obstacle(self) -> str | None:
        if self._device.type != "cuda":
            return f"the learner trains on the {self._device.type}, and NCCL connects CUDA devices"
        return INSTALL if importlib.util.find_spec("vllm") is None else None

    def join(self, servers: Servers, *, address: str, port: int, num_workers: int) -> None:
        import torch

        try:
            from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingPackage(f"{INSTALL} ({error})") from error
        self.close()
        self._source = _source(self._device)
        info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + num_workers, rank=0)
        with torch.cuda.device(self._device):
            self._engine = NCCLTrainerWeightTransferEngine.trainer_init(info, client=servers, source=self._source)

    def send(self, weights: Mapping[str, Tensor]) -> None:
        import torch

        assert self._engine is not None, "a sender joins its group before it sends"
        self._source.weights = weights
        with torch.cuda.device(self._device):
            # The packed broadcast runs on streams of its own, and must not overtake the optimizer's.
            torch.cuda.current_stream().synchronize()
            self._engine.send_weights()

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


def _source(device: torch.device) -> Any:
    """VLLM's `WeightSource` over tensors by name, each brought to the device when its turn comes."""
    from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
        ParamMeta,
        WeightSource,
    )

    class Named(WeightSource):  # pyright: ignore[reportUntypedBaseClass]
        weights: Mapping[str, Tensor] = {}

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, source.dtype, source.shape) for name, source in sources_of(self.weights).items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self.weights.items():
                yield name, tensor.detach().to(device)

    return Named()
