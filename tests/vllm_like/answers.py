"""What a server answers: the JSON of completions, models, settings, and the figures of `/metrics`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from tests.vllm_like.bodies import Asked, Refusal
from tests.vllm_like.drawing import Entry
from tests.vllm_like.options import VERSION, Options
from tests.vllm_like.scheduler import Scheduler
from tests.vllm_like.sequence import Sequence

_PATH = re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+")


def error(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """An error as it reaches a client: without paths."""
    return {"error": {"message": _PATH.sub("<path>", message), "type": kind, "param": param, "code": code}}


def refusal(refused: Refusal) -> dict[str, Any]:
    return error(str(refused), refused.kind, refused.code, refused.param)


def generated(asked: Asked, sequences: list[Sequence], name: str, options: Options) -> dict[str, Any]:
    """`/inference/v1/generate`."""
    return {
        "request_id": asked.request_id,
        "model": asked.adapter or name,
        "created": int(time.time()),
        "usage": _usage(asked, sequences),
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": asked.prompt if asked.prompt_ids_too else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [_generated_choice(asked, sequence, options) for sequence in sequences],
    }


def _generated_choice(asked: Asked, sequence: Sequence, options: Options) -> dict[str, Any]:
    content = [_place(drawn.entries, asked.logprobs or 0) for drawn in sequence.drawn]
    masks = [drawn.candidates for drawn in sequence.drawn]
    return {
        "index": sequence.index,
        "finish_reason": sequence.finish_reason,
        "stop_reason": sequence.stop_reason,
        "token_ids": sequence.ids,
        "routed_experts": None,
        "sampling_mask": masks if options.return_sampling_mask else None,
        "weight_versions": sequence.spans(),
        "logprobs": None if asked.logprobs is None else {"content": content},
    }


def _place(entries: list[Entry], wanted: int) -> dict[str, Any]:
    """The sampled token counts among the `wanted` ones."""
    return {**_entry(entries[0]), "top_logprobs": [_entry(entry) for entry in entries[: max(wanted, 1)]]}


def _entry(entry: Entry) -> dict[str, Any]:
    return {"token_id": entry.token, "logprob": entry.logprob, "rank": entry.rank}


def completed(asked: Asked, sequences: list[Sequence], name: str, text: Callable[[list[int]], str]) -> dict[str, Any]:
    """`/v1/completions`."""
    return {
        "id": asked.request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.adapter or name,
        "choices": [
            {
                "index": sequence.index,
                "text": text(sequence.ids),
                "logprobs": None if asked.logprobs is None else _completed_logprobs(asked, sequence, text),
                "finish_reason": sequence.finish_reason,
                "stop_reason": sequence.stop_reason,
                "token_ids": sequence.ids if asked.ids_too else None,
                "prompt_logprobs": None,
                "prompt_token_ids": asked.prompt if asked.prompt_ids_too else None,
                "routed_experts": None,
            }
            for sequence in sequences
        ],
        "service_tier": None,
        "system_fingerprint": f"vllm-{VERSION}-00000000",
        "usage": _usage(asked, sequences),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _completed_logprobs(asked: Asked, sequence: Sequence, text: Callable[[list[int]], str]) -> dict[str, Any]:
    def named(token: int) -> str:
        return f"token_id:{token}" if asked.as_token_ids else text([token])

    kept = [drawn.entries[: (asked.logprobs or 0) + 1] for drawn in sequence.drawn]
    tokens = [named(token) for token in sequence.ids]
    return {
        "text_offset": [sum(map(len, tokens[:place])) for place in range(len(tokens))],
        "token_logprobs": [drawn.entries[0].logprob for drawn in sequence.drawn],
        "tokens": tokens,
        "top_logprobs": [{named(entry.token): entry.logprob for entry in entries} for entries in kept],
    }


def _usage(asked: Asked, sequences: list[Sequence]) -> dict[str, Any]:
    tokens = sum(len(sequence.ids) for sequence in sequences)
    return {
        "prompt_tokens": len(asked.prompt),
        "total_tokens": len(asked.prompt) + tokens,
        "completion_tokens": tokens,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def models(name: str, path: str, scheduler: Scheduler) -> dict[str, Any]:
    """`/v1/models`: the base, and every adapter."""
    adapters = scheduler.network.adapters.values()
    base = _model_card(name, path, None, scheduler.max_model_len)
    return {
        "object": "list",
        "data": [base, *(_model_card(adapter.name, adapter.path, name, None) for adapter in adapters)],
    }


def _model_card(name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
    now = int(time.time())
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [{"id": "modelperm-0", "object": "model_permission", "created": now, "allow_sampling": True}],
    }


def server_info(name: str, path: str, scheduler: Scheduler) -> dict[str, Any]:
    """`/server_info?config_format=json`, as far as anybody reads it."""
    options = scheduler.options
    lora = {"max_lora_rank": options.max_lora_rank, "max_loras": options.max_loras, "max_cpu_loras": options.max_loras}
    return {
        "vllm_config": {
            "model_config": {
                "model": path,
                "tokenizer": path,
                "dtype": f"torch.{options.dtype}",
                "max_model_len": scheduler.max_model_len,
                "logprobs_mode": options.logprobs_mode,
                "max_logprobs": options.max_logprobs,
                "return_sampling_mask": options.return_sampling_mask,
                "served_model_name": name,
                "generation_config": "vllm",
                "enforce_eager": True,
            },
            "cache_config": {
                "block_size": options.block_size,
                "num_gpu_blocks": options.num_blocks,
                "kv_cache_size_tokens": options.num_blocks * options.block_size,
                "enable_prefix_caching": True,
            },
            "scheduler_config": {"max_num_seqs": options.max_num_seqs, "max_num_batched_tokens": 8192},
            "device_config": {"device": options.device},
            "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": 1, "world_size": 1},
            "lora_config": lora if options.enable_lora else None,
            "instance_id": scheduler.instance,
            "weight_transfer_config": {"backend": options.weight_transfer} if options.weight_transfer else None,
        },
        "vllm_env": {
            "VLLM_SERVER_DEV_MODE": options.dev_mode,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": options.runtime_lora_updating,
        },
        "system_env": {},
    }


def metrics(name: str, scheduler: Scheduler) -> str:
    """`/metrics`: the figures of section 6 of a real server's page."""
    options, labels = scheduler.options, f'engine="0",model_name="{name}"'
    tokens = options.num_blocks * options.block_size
    concurrency = tokens / scheduler.max_model_len
    cache = (
        f'block_size="{options.block_size}",enable_prefix_caching="True",engine="0",'
        f'kv_cache_max_concurrency="{concurrency}",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{options.num_blocks}"'
    )
    waiting = float(len(scheduler.waiting))
    figures = [
        ("gauge", "num_requests_running", labels, float(len(scheduler.running))),
        ("gauge", "num_requests_waiting", labels, waiting),
        ("gauge", "num_requests_waiting_by_reason", f'{labels},reason="capacity"', waiting),
        ("gauge", "num_requests_waiting_by_reason", f'{labels},reason="deferred"', 0.0),
        ("gauge", "kv_cache_usage_perc", labels, scheduler.blocks_in_use / options.num_blocks),
        ("counter", "prefix_cache_queries_total", labels, float(scheduler.prefixes.queries)),
        ("counter", "prefix_cache_hits_total", labels, float(scheduler.prefixes.hits)),
        ("counter", "num_preemptions_total", labels, float(scheduler.preemptions)),
        ("counter", "prompt_tokens_total", labels, float(scheduler.prompted)),
        ("counter", "generation_tokens_total", labels, float(scheduler.generated)),
        *(
            (
                "counter",
                "request_success_total",
                f'engine="0",finished_reason="{reason}",model_name="{name}"',
                float(count),
            )
            for reason in ("stop", "length", "abort", "error", "repetition")
            for count in [scheduler.finished[reason]]
        ),
        ("gauge", "cache_config_info", cache, 1.0),
    ]
    lines: list[str] = []
    for kind, figure, labelled, value in figures:
        head = f"# TYPE vllm:{figure} {kind}"
        lines += [] if head in lines else [f"# HELP vllm:{figure} {figure}", head]
        lines.append(f"vllm:{figure}{{{labelled}}} {value}")
    return "\n".join(lines) + "\n"
