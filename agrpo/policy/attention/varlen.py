"""Attention of a row by one GPU kernel that takes sequences of many lengths.

The kernel comes from the hub through `kernels`, by the kind of GPU. Where it cannot be had, torch's own is called. Both align
causality to the last key, so that a segment's first query sees its whole path; `verify_packing` would find one that does not.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from agrpo.errors import ModelError
from agrpo.policy.attention.layout import Layout, Lengths
from agrpo.policy.attention.segments import attend_segments

logger = logging.getLogger(__name__)

WIDEST_HEAD = 256
"""Widest head that torch's own kernel takes."""
WIDTH_STEP = 8
"""Kernels take heads of a multiple of this width."""
NARROW_TYPES = (torch.bfloat16, torch.float16)
"""Types that these kernels compute in."""


@dataclass(frozen=True, slots=True)
class HubKernel:
    """A flash attention on the hub."""

    name: str
    version: int
    caps_scores: bool
    """Whether it computes capped scores, with their gradient."""


ON_AMD = HubKernel("kernels-community/aiter-flash-attn", 2, caps_scores=False)
ON_BLACKWELL = HubKernel("kernels-community/flash-attn4", 0, caps_scores=False)
ON_NVIDIA = HubKernel("kernels-community/flash-attn3", 1, caps_scores=True)
FIRST_BLACKWELL = 10
"""Major compute capability."""


def hub_kernel(*, is_amd: bool, capability: int) -> HubKernel:
    """The kernel for a GPU. `capability`: its major compute capability, which says nothing on AMD."""
    if is_amd:
        return ON_AMD
    return ON_BLACKWELL if capability >= FIRST_BLACKWELL else ON_NVIDIA


def hub_kernel_of(device: torch.device) -> HubKernel:
    """The kernel for this GPU."""
    return hub_kernel(is_amd=torch.version.hip is not None, capability=torch.cuda.get_device_capability(device)[0])


def attend_on_gpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """As `attend_segments`: by the GPU's kernel where the type fits, else by torch's own, else segment by segment."""
    given = (query, key, value, layout)
    if query.dtype not in NARROW_TYPES:
        _tell_once(f"attention in {query.dtype} is computed segment by segment; GPU kernels take bfloat16 and float16")
        return attend_segments(*given, scaling=scaling, window=window, softcap=softcap)
    function = _loaded(hub_kernel_of(query.device))
    if function is not None:
        return attend_by_hub(function, *given, scaling=scaling, window=window, softcap=softcap)
    if softcap is None and _width(query, value) <= WIDEST_HEAD and _torch_knows_windows():
        return attend_by_torch(*given, scaling=scaling, window=window)
    return attend_segments(*given, scaling=scaling, window=window, softcap=softcap)


def attend_by_hub(
    function: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One call of `function`, a `flash_attn_varlen_func` of any of the kernels above."""
    arguments = hub_arguments(function, layout.lengths, scaling=_scale(query, scaling), window=window, softcap=softcap)
    output = function(*_prepared(query, key, value, layout.lengths), **arguments)
    # Some return what backward needs as well.
    output = output[0] if isinstance(output, tuple) else output
    return output[..., : value.shape[-1]]


def hub_arguments(
    function: Callable[..., Any], lengths: Lengths, *, scaling: float | None, window: int | None, softcap: float | None
) -> dict[str, Any]:
    """What `function` is given beside queries, keys and values. Raises `ModelError` for what it cannot be asked."""
    known = inspect.signature(function).parameters
    needed: dict[str, Any] = {
        "cu_seqlens_q": lengths.queries_until,
        "cu_seqlens_k": lengths.keys_until,
        "softmax_scale": scaling,
        "causal": True,
    }
    if window is not None and lengths.longest_path > window:
        needed["window_size"] = (window - 1, 0)
    if softcap is not None:
        needed["softcap"] = softcap
    missing = sorted(needed.keys() - known)
    if missing:
        raise ModelError(
            f"the attention kernel {getattr(function, '__module__', function)} takes no {', '.join(missing)}, which this model "
            "needs; update the package kernels, or use another model"
        )
    wished: dict[str, Any] = {
        "max_seqlen_q": lengths.longest_segment,
        "max_seqlen_k": lengths.longest_path,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    return needed | {name: wish for name, wish in wished.items() if name in known}


def attend_by_torch(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, *, scaling: float | None, window: int | None
) -> Tensor:
    """One call of `torch.nn.attention.varlen.varlen_attn`."""
    from torch.nn.attention.varlen import varlen_attn

    lengths = layout.lengths
    attend: Callable[..., Any] = varlen_attn
    output = attend(
        *_prepared(query, key, value, lengths),
        lengths.queries_until,
        lengths.keys_until,
        lengths.longest_segment,
        lengths.longest_path,
        scale=_scale(query, scaling),
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[..., : value.shape[-1]]


def _prepared(query: Tensor, key: Tensor, value: Tensor, lengths: Lengths) -> list[Tensor]:
    """All of one width, with zeros that change no score; keys and values along the paths."""
    width = _width(query, value)
    if lengths.keys is not None:
        key, value = key.index_select(0, lengths.keys), value.index_select(0, lengths.keys)
    return [pad(states, (0, width - states.shape[-1])).contiguous() for states in (query, key, value)]


def _width(query: Tensor, value: Tensor) -> int:
    widest = max(query.shape[-1], value.shape[-1])
    return -(-widest // WIDTH_STEP) * WIDTH_STEP


def _scale(query: Tensor, scaling: float | None) -> float:
    """What a kernel would take from the width, before it was padded."""
    return query.shape[-1] ** -0.5 if scaling is None else scaling


@cache
def _torch_knows_windows() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa", "scale"} <= inspect.signature(varlen_attn).parameters.keys()


@cache
def _loaded(kernel: HubKernel) -> Callable[..., Any] | None:
    """The kernel's function; None, said once, where it cannot be had."""
    from httpx import HTTPError

    try:
        from kernels import get_kernel

        return get_kernel(kernel.name, version=kernel.version).flash_attn_varlen_func
    except (ImportError, OSError, RuntimeError, ValueError, AttributeError, HTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning("%s cannot be loaded (%s); attention is computed by torch's own kernels", kernel.name, reason)
        return None


@cache
def _tell_once(message: str) -> None:
    logger.info(message)
