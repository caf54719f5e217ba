"""Peaks of devices: listed by the name of a GPU, measured on a CPU."""

from __future__ import annotations

import pytest
import torch

from agrpo.policy.peak import listed_peak, measured_peak, peak_flops_per_second


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H100 PCIe", torch.float16, 756),
        ("NVIDIA L4", torch.bfloat16, 121),
        ("NVIDIA L40S", torch.bfloat16, 362),
        ("AMD Instinct MI300X", torch.bfloat16, 1307.4),
        ("Tesla T4", torch.float16, 65),
    ],
)
def test_a_gpu_is_known_by_its_whole_name(name: str, dtype: torch.dtype, tera: float):
    assert listed_peak(name, dtype) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", torch.bfloat16),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", torch.bfloat16),
        ("NVIDIA H100 80GB HBM3e", torch.bfloat16),
        ("Tesla T4", torch.bfloat16),
        ("NVIDIA A100-SXM4-80GB", torch.float64),
    ],
)
def test_of_a_part_another_model_or_another_type_nothing_is_said(name: str, dtype: torch.dtype):
    assert listed_peak(name, dtype) is None


def test_where_float32_may_be_shortened_its_peak_is_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert listed_peak("NVIDIA A100-SXM4-80GB", torch.float32) is None
    assert listed_peak("NVIDIA A100-SXM4-80GB", torch.bfloat16) == 312e12


def test_a_cpus_peak_is_measured_and_no_product_is_faster_than_it_by_much():
    assert peak_flops_per_second(torch.device("meta"), torch.float32) is None
    measured = peak_flops_per_second(torch.device("cpu"), torch.float32)
    assert measured is not None and 1e8 < measured < 1e15
    assert measured_peak(torch.bfloat16) > 1e7
