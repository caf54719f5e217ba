"""How a server was started: each field is a flag, or the device it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VERSION = "0.32.0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The defaults are a start command with every flag that agrpo asks for."""

    served_model_name: str | None = None
    """None: the model's path."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: int | None = None
    """None: the model's positions."""
    dev_mode: bool = True
    """`VLLM_SERVER_DEV_MODE=1`."""
    enable_scale_out: bool = True
    logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] = "processed_logprobs"
    """The real default is `raw_logprobs`."""
    max_logprobs: int = 20
    return_sampling_mask: bool = False
    api_key: str | None = None
    weight_transfer: str | None = None
    """Backend of `--weight-transfer-config`."""
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16
    runtime_lora_updating: bool = False
    """`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`."""
    max_num_seqs: int = 256
    block_size: int = 16
    num_blocks: int = 4096
    """Of K/V."""
    has_metrics: bool = True
    """False: `/metrics` is not there (`--disable-log-stats` leaves no vLLM figures in it)."""
    device: Literal["cuda", "cpu"] = "cuda"
    """On a CPU the output head is a packed copy that only its own name reloads, and a seed does not outlive a pause."""
    step_seconds: float = 0.0
    """Time for one token of every running request."""
