"""From the name of a GPU to what it can do: the catalogue, a user's TOML, or a name that such a file defines."""

from __future__ import annotations

from typing import Any

from ..errors import unknown
from .gpu import Gpu
from .gpus import GPUS


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case; UserError listing the known ones otherwise. No name is an alias of another."""
    key = name.strip().lower()
    if key not in GPUS:
        raise unknown("GPU", name, GPUS)
    return GPUS[key]


def gpu_rows() -> list[dict[str, Any]]:
    """What is known of every GPU, a row each, with the source of every figure that was not measured on it."""
    return [gpu_row(gpu) for gpu in GPUS.values()]


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """One GPU in the units that people speak of."""
    return {
        "gpu": gpu.name,
        "usable_gib": gpu.usable_gib,
        "bandwidth_gb_s": gpu.bandwidth / 1e9,
        "bf16_tflops": gpu.flops["bf16"] / 1e12,
        "fp8_tflops": gpu.flops["fp8"] / 1e12 if "fp8" in gpu.flops else None,
        "host_link_gb_s": gpu.link_bandwidth / 1e9,
        "price_per_hour": gpu.price_per_hour,
        "price_source": gpu.price_source,
        "usable_source": gpu.usable_source,
        "efficiency_source": gpu.efficiency_source,
        "all_reduce_source": gpu.all_reduce_source,
        "link_source": gpu.link_source,
    }
