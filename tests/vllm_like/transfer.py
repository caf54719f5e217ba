"""The weight-transfer endpoints: their order is held, and the weights come over a channel that a test has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tests.vllm_like.network import WorkerFailed

if TYPE_CHECKING:
    from torch import Tensor

    from tests.vllm_like.scheduler import Scheduler

UNSET = "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."


class Transfer:
    """What a worker's transfer engine keeps between two calls."""

    PATHS: ClassVar = (
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
    )

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.init_info: dict[str, Any] | None = None
        self.sent: dict[str, Tensor] = {}
        """The sender's side of the channel: a weight that is announced is taken from here."""
        self._is_active = False

    def take(self, path: str, body: Any) -> str:
        """Do what one call asks for; the answer's message. Raises `WorkerFailed`."""
        if self._scheduler.options.weight_transfer is None:
            raise WorkerFailed(UNSET)
        match path:
            case "/init_weight_transfer_engine":
                self.init_info = body["init_info"]
                return "Weight transfer initialized"
            case "/shutdown_weight_transfer_engine":
                self._check(self._is_active, wanted=False)
                self.init_info = None
                return "Weight transfer shut down"
            case "/start_weight_update":
                self._check(self._is_active, wanted=False)
                self._is_active = True
                return "Weight update started"
            case "/update_weights":
                self._check(self._is_active, wanted=True)
                self._receive(body["update_info"])
                return "Weights updated"
            case _:
                self._check(self._is_active, wanted=True)
                self._is_active = False
                label = (body or {}).get("weight_version")
                self._scheduler.label = self._scheduler.label if label is None else label
                return "Weight update finished"

    def _receive(self, info: dict[str, Any]) -> None:
        names, dtypes, shapes = info["names"], info["dtype_names"], info["shapes"]
        for what, told in (("dtype_names", dtypes), ("shapes", shapes)):
            if len(told) != len(names):
                raise WorkerFailed(f"`{what}` should be of the same size as `names`: got {len(told)} and {len(names)}")
        if self.init_info is None:
            raise WorkerFailed("NCCL weight transfer not initialized. Call init_transfer_engine() first.")
        for name, shape in zip(names, shapes, strict=True):
            self._scheduler.network.take(name, self.sent[name].reshape(shape))

    def _check(self, active: bool, *, wanted: bool) -> None:
        if active != wanted:
            raise WorkerFailed("start_weight_update must be called before." if wanted else "A weight update is active.")
