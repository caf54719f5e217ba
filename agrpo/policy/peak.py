"""The peak of a training device: most FLOPs a second that products of matrices can reach there.

Of a GPU it is the maker's figure, without sparsity, for products that add up in float32: NVIDIA's data sheets and
architecture whitepapers (V100, T4, Ampere, Ada, Hopper, Blackwell), AMD's Instinct data sheets (a card of two dies is two
devices). Of a CPU it is measured: nobody's data sheet knows how many of its threads a learner has.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import cache

import torch

TERA = 10**12


@dataclass(frozen=True, slots=True)
class _Figures:
    """TFLOP/s of one device."""

    half: float
    """In bfloat16 and float16."""
    single: float
    """In float32, which torch does not shorten by itself."""
    has_bfloat16: bool = True


_PEAKS: dict[str, _Figures] = {
    "Tesla V100-SXM2-.*": _Figures(125, 15.7, has_bfloat16=False),
    "Tesla T4": _Figures(65, 8.1, has_bfloat16=False),
    "NVIDIA A100[- ].*": _Figures(312, 19.5),
    "NVIDIA A10": _Figures(125, 31.2),
    "NVIDIA A30": _Figures(165, 10.3),
    "NVIDIA A40": _Figures(149.7, 37.4),
    "NVIDIA RTX A6000": _Figures(154.8, 38.7),
    "NVIDIA GeForce RTX 3090": _Figures(71, 35.6),
    "NVIDIA GeForce RTX 4090": _Figures(165.2, 82.6),
    "NVIDIA GeForce RTX 5090": _Figures(209.5, 104.8),
    "NVIDIA L4": _Figures(121, 30.3),
    "NVIDIA L40": _Figures(181, 90.5),
    "NVIDIA L40S": _Figures(362, 91.6),
    "NVIDIA H100 80GB HBM3": _Figures(989.4, 66.9),
    "NVIDIA H100 PCIe": _Figures(756, 51.2),
    "NVIDIA H100 NVL": _Figures(835.5, 60),
    "NVIDIA H200": _Figures(989.4, 66.9),
    "NVIDIA H200 NVL": _Figures(835.5, 60),
    "NVIDIA GH200 .*": _Figures(989.4, 66.9),
    "NVIDIA B200": _Figures(2250, 75),
    "NVIDIA GB200": _Figures(2500, 80),
    "AMD Instinct MI210": _Figures(181, 45.3),
    "AMD Instinct MI250": _Figures(181, 45.3),
    "AMD Instinct MI250X": _Figures(191.5, 47.9),
    "AMD Instinct MI300A": _Figures(980.6, 122.6),
    "AMD Instinct MI300X": _Figures(1307.4, 163.4),
    "AMD Instinct MI325X": _Figures(1307.4, 163.4),
    "AMD Instinct MI355X": _Figures(2516.6, 157.3),
}
"""By the whole name that the device gives itself."""

MEASURED_SIZE = 1024
MEASURED_SECONDS = 0.3


def peak_flops_per_second(device: torch.device, dtype: torch.dtype) -> float | None:
    """Of one device, for arithmetic in `dtype`. None: not known. On a CPU it is measured, in under a second."""
    if device.type == "cpu":
        return measured_peak(dtype)
    if device.type == "cuda":
        return listed_peak(torch.cuda.get_device_name(device), dtype)
    return None


def listed_peak(name: str, dtype: torch.dtype) -> float | None:
    """Of a GPU that gives itself this name. None: not listed, a part of one, or float32 is shortened."""
    found = next((figures for pattern, figures in _PEAKS.items() if re.fullmatch(pattern, name)), None)
    if found is None or " MIG " in name:
        return None
    if dtype is torch.float16 or (dtype is torch.bfloat16 and found.has_bfloat16):
        return found.half * TERA
    if dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return found.single * TERA
    return None


def measured_peak(dtype: torch.dtype) -> float:
    """Of this process's threads on the CPU: the fastest of some products of two square matrices.

    Taken from CPU seconds, shared out evenly over the threads: others who use the machine do not lower it. Once in a
    process for a type and a number of threads.
    """
    return _measured_peak(dtype, torch.get_num_threads())


@cache
def _measured_peak(dtype: torch.dtype, num_threads: int) -> float:
    factor = torch.full((MEASURED_SIZE, MEASURED_SIZE), 0.5, dtype=dtype)
    product = torch.empty_like(factor)
    fewest, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < MEASURED_SECONDS:
        start = time.process_time()
        torch.mm(factor, factor, out=product)
        fewest = min(fewest, time.process_time() - start)
    return 2 * MEASURED_SIZE**3 * num_threads / fewest
