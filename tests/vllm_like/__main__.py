"""`python -m tests.vllm_like [serve] MODEL --port P`: a server in a process of its own, with vLLM's own flags."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.vllm_like.options import Options
from tests.vllm_like.server import Server

IGNORED = ("--disable-uvicorn-access-log", "--enforce-eager", "--trust-remote-code")
IGNORED_WITH_VALUE = (
    "--host",
    "--generation-config",
    "--revision",
    "--kv-cache-memory-bytes",
    "--max-num-batched-tokens",
)


def main(arguments: Sequence[str]) -> None:
    told = _parser().parse_args(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    torch.set_num_threads(1)
    server = Server(Path(told.model or told.model_named), _options(told), port=told.port)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with server:
        print(f"INFO: Application startup complete. {server.url}", flush=True)
        ended.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm_like", allow_abbrev=False)
    parser.add_argument("model_named", nargs="?", metavar="MODEL")
    parser.add_argument("--model")
    parser.add_argument("--port", type=int, default=8000)
    for flag in ("--served-model-name", "--logprobs-mode", "--dtype", "--api-key", "--weight-transfer-config"):
        parser.add_argument(flag)
    for flag in (
        "--max-model-len",
        "--max-logprobs",
        "--max-loras",
        "--max-lora-rank",
        "--max-num-seqs",
        "--block-size",
    ):
        parser.add_argument(flag, type=int)
    for flag in ("--enable-scale-out", "--return-sampling-mask", "--enable-lora", *IGNORED):
        parser.add_argument(flag, action="store_true")
    for flag in IGNORED_WITH_VALUE:
        parser.add_argument(flag)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--step-seconds", type=float, default=0.0)
    return parser


def _options(told: argparse.Namespace) -> Options:
    flags = {name: getattr(told, name) for name in Options.__dataclass_fields__ if hasattr(told, name)}
    given = {name: value for name, value in flags.items() if value is not None}
    transfer = told.weight_transfer_config
    return Options(
        **{"logprobs_mode": "raw_logprobs", "enable_scale_out": False} | given,
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
        runtime_lora_updating=os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1",
        weight_transfer=json.loads(transfer)["backend"] if transfer else None,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
