"""Weights over gloo: the learner's and the servers' ends of a real broadcast between sockets, where there is no NCCL.

The sender makes the calls that vLLM's trainer engine makes, in its order and with its bodies; the receiving end takes the
place of a worker's transfer engine in `tests.vllm_like`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from agrpo.weights.sender import Servers
from tests.vllm_like import Server
from tests.vllm_like.network import WorkerFailed
from tests.vllm_like.transfer import Transfer

SECONDS = 2
"""Until an end of the channel gives up waiting for the other."""


def _group(address: str, port: int, rank: int, size: int) -> tuple[TCPStore, ProcessGroupGloo]:
    limit = timedelta(seconds=SECONDS)
    store = TCPStore(address, port, size, rank == 0, limit, wait_for_workers=False)
    return store, ProcessGroupGloo(PrefixStore("weights", store), rank, size, limit)


def _broadcast(group: ProcessGroupGloo, tensor: Tensor) -> None:
    """Rank 0's tensor, to all."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor], options).wait()


class GlooSender:
    """A `Sender` like `NCCLTrainerWeightTransferEngine`. Its device is of no matter."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._servers: Servers | None = None
        self._store: TCPStore | None = None
        self._group: ProcessGroupGloo | None = None

    def obstacle(self) -> str | None:
        return None

    def join(self, servers: Servers, *, address: str, port: int, num_workers: int) -> None:
        info = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": 1 + num_workers}
        info |= {"packed": True, "packed_buffer_size_bytes": 2**30, "packed_num_buffers": 2}
        with ThreadPoolExecutor(1) as side:
            joined = side.submit(servers.init_weight_transfer_engine, info)
            self._store, self._group = _group(address, port, 0, 1 + num_workers)
            joined.result()
        self._servers = servers

    def send(self, weights: Mapping[str, Tensor]) -> None:
        assert self._servers is not None and self._group is not None, "join comes first"
        names = list(weights)
        told = {
            "names": names,
            "dtype_names": [str(tensor.dtype).split(".")[-1] for tensor in weights.values()],
            "shapes": [list(tensor.shape) for tensor in weights.values()],
        }
        self._servers.start_weight_update()
        side = ThreadPoolExecutor(1)
        try:
            received = side.submit(self._servers.update_weights, told)
            for tensor in weights.values():
                _broadcast(self._group, tensor.detach().clone())
            received.result()
        finally:
            side.shutdown(wait=False)
        self._servers.finish_weight_update()

    def close(self) -> None:
        group, self._group, self._store = self._group, None, None
        if group is not None:
            group.abort()


class GlooTransfer(Transfer):
    """The receiving end: one rank of the group. An update that has begun leaves no weights until it is finished."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._store: TCPStore | None = None
        self._group: ProcessGroupGloo | None = None

    def take(self, path: str, body: Any) -> str:
        said = super().take(path, body)
        network: Any = self._scheduler.network
        if path == "/init_weight_transfer_engine":
            self._join()
        elif path == "/shutdown_weight_transfer_engine":
            self._group = self._store = None
        elif path == "/start_weight_update":
            network._whole = False
        elif path == "/finish_weight_update":
            network._whole = True
        return said

    def _join(self) -> None:
        info = self.init_info
        assert info is not None
        place = (info["master_address"], info["master_port"], info["rank_offset"], info["world_size"])
        self._store, self._group = _group(*place)

    def _receive(self, info: dict[str, Any]) -> None:
        if self._group is None:
            raise WorkerFailed("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        self.sent = {}
        try:
            for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
                self.sent[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                _broadcast(self._group, self.sent[name])
        except RuntimeError as error:
            self._is_active = False
            raise WorkerFailed(str(error).splitlines()[0]) from None
        self._take(info)

    def _take(self, info: dict[str, Any]) -> None:
        super()._receive(info)


class Forgetful(GlooTransfer):
    """Answers that it has the weights, and keeps those it had."""

    def _take(self, info: dict[str, Any]) -> None: ...


def can_receive(server: Server, end: type[GlooTransfer] = GlooTransfer) -> Server:
    """The same server, with a receiving end; to be said again when it was started again."""
    server.service.transfer = end(server.service.scheduler)
    return server
