"""The call of a GPU kernel, made of a stand-in that computes what the kernel documents, where there is no GPU."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.errors import ModelError
from agrpo.policy.attention import Layout, varlen
from agrpo.policy.attention.segments import attend_segments
from agrpo.policy.attention.varlen import (
    ON_AMD,
    ON_BLACKWELL,
    ON_NVIDIA,
    HubKernel,
    attend_by_hub,
    attend_by_torch,
    hub_arguments,
    hub_kernel,
)

FORK = np.array([-1, 0, 1, 2, 1, 4, 5, 5, -1, 8])
WHOLE = np.array([-1, 0, 1, -1, 3, -1])


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Sequence by sequence, causal and windowed from the last key back, with heads in groups."""
    assert causal and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    outputs: list[torch.Tensor] = []
    for number in range(len(cu_seqlens_q) - 1):
        queries, keys = (slice(*ends[number : number + 2].tolist()) for ends in (cu_seqlens_q, cu_seqlens_k))
        length, total = queries.stop - queries.start, keys.stop - keys.start
        assert length <= max_seqlen_q and total <= max_seqlen_k
        distance = torch.arange(length)[:, None] + total - length - torch.arange(total)[None]
        seen = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
        groups = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[queries], k[keys].repeat_interleave(groups, 1)) * softmax_scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v[keys].repeat_interleave(groups, 1)))
    return torch.cat(outputs)


def states(length: int, width: int = 8, value_width: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(length, heads, size, dtype=torch.float64, generator=generator)
        for heads, size in ((4, width), (2, width), (2, value_width))
    ]


@pytest.mark.spec("A-146", "A-150")
@settings(max_examples=30, deadline=None)
@given(st.sampled_from([FORK, WHOLE]), st.sampled_from([None, 2, 50]), st.sampled_from([None, 0.7]))
def test_one_call_over_all_segments_gives_what_segments_give(parents, window: int | None, softcap: float | None):
    layout, given_states = Layout(parents), states(len(parents))
    expected = attend_segments(*given_states, layout, scaling=0.3, window=window, softcap=softcap)
    found = attend_by_hub(flash_attn_varlen_func, *given_states, layout, scaling=0.3, window=window, softcap=softcap)
    assert torch.allclose(found, expected, atol=1e-12)


def test_heads_of_other_widths_are_padded_for_the_kernel():
    layout, given_states = Layout(FORK), states(len(FORK), width=12, value_width=4)
    seen: list[int] = []

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal):
        seen.extend(states.shape[-1] for states in (q, k, v))
        ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": 99, "max_seqlen_k": 99}
        return flash_attn_varlen_func(q, k, v, **ends, softmax_scale=softmax_scale, causal=causal), None

    found = attend_by_hub(kernel, *given_states, layout, scaling=None, window=None, softcap=None)
    expected = attend_segments(*given_states, layout, scaling=None, window=None, softcap=None)
    assert seen == [16, 16, 16] and found.shape[-1] == 4
    assert torch.allclose(found, expected, atol=1e-12)


def test_kernel_is_given_what_it_knows_and_no_more():
    lengths = Layout(FORK).lengths
    torch.use_deterministic_algorithms(True)
    try:
        full = hub_arguments(flash_attn_varlen_func, lengths, scaling=0.5, window=3, softcap=None)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (full["max_seqlen_q"], full["max_seqlen_k"], full["deterministic"]) == (2, 5, True)
    assert (full["window_size"], full["causal"], full["softmax_scale"]) == ((2, 0), True, 0.5)
    assert "softcap" not in full
    assert "window_size" not in hub_arguments(flash_attn_varlen_func, lengths, scaling=0.5, window=5, softcap=None)


@pytest.mark.spec("A-021")
def test_kernel_that_cannot_be_asked_for_what_the_model_needs_is_refused():
    def older(q, k, v, *, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False):
        raise AssertionError

    with pytest.raises(ModelError, match=r"takes no softcap, window_size, which this model needs"):
        hub_arguments(older, Layout(FORK).lengths, scaling=None, window=2, softcap=30.0)


@pytest.mark.spec("A-020")
@pytest.mark.parametrize(
    ("is_amd", "capability", "name"),
    [
        (True, 9, "kernels-community/aiter-flash-attn"),
        (False, 8, "kernels-community/flash-attn3"),
        (False, 9, "kernels-community/flash-attn3"),
        (False, 10, "kernels-community/flash-attn4"),
        (False, 12, "kernels-community/flash-attn4"),
    ],
)
def test_kernel_is_chosen_by_the_kind_of_gpu(is_amd: bool, capability: int, name: str):
    assert hub_kernel(is_amd=is_amd, capability=capability).name == name
    assert {kernel.caps_scores for kernel in (ON_AMD, ON_BLACKWELL)} == {False} and ON_NVIDIA.caps_scores


def test_kernel_that_cannot_be_had_is_told_once_with_its_reason(caplog: pytest.LogCaptureFixture):
    absent = HubKernel("agrpo/absent-attention", 1, caps_scores=False)
    with caplog.at_level(logging.WARNING, logger="agrpo"):
        assert [varlen._loaded(absent), varlen._loaded(absent)] == [None, None]
    [line] = [record.getMessage() for record in caplog.records if record.name == varlen.__name__]
    assert line.startswith("agrpo/absent-attention cannot be loaded (") and "torch's own kernels" in line


@pytest.mark.parametrize("window", [None, 3])
def test_torch_has_a_kernel_to_fall_back_to_that_is_given_the_same(window: int | None, monkeypatch: pytest.MonkeyPatch):
    assert varlen._torch_knows_windows()
    layout, given_states = Layout(FORK), states(len(FORK), width=12, value_width=4)

    def torch_kernel(q, k, v, *lengths, scale, window_size, enable_gqa):
        assert enable_gqa and window_size == (-1 if window is None else 2, 0)
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        named = dict(zip(names, lengths, strict=True))
        return flash_attn_varlen_func(q, k, v, **named, softmax_scale=scale, causal=True, window_size=window_size)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", torch_kernel)
    found = attend_by_torch(*given_states, layout, scaling=None, window=window)
    expected = attend_segments(*given_states, layout, scaling=None, window=window, softcap=None)
    assert torch.allclose(found, expected, atol=1e-12)


def test_torch_takes_the_call_as_it_is_made():
    layout = Layout(FORK, "meta")
    query, key, value = (torch.empty(len(FORK), heads, 64, device="meta") for heads in (4, 2, 2))
    assert attend_by_torch(query, key, value, layout, scaling=None, window=3).shape == (len(FORK), 4, 64)
