"""`Gpu`: what one accelerator holds, computes and moves, as measured, and what an hour of it costs.

Peaks are dense data-sheet figures. Efficiencies are medians over operator tables measured under vLLM 0.24.0
(A100: 0.14.0): the share of the peak that an operation reaches. fp8 never reaches twice bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import UserError, unknown

PRICE_SOURCE = "CoreWeave on demand, February 2026"
ALL_REDUCE_BYTES = 8.0 * 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `usable_gib` is what the driver shows, not the label; rates per second; times in seconds.

    `all_reduce_s` maps a tensor-parallel size to (latency, time of 8 MiB). `matmul` and `streaming` map a dtype to
    the achieved share of dense peak FLOPs and of memory bandwidth.
    """

    name: str
    usable_gib: float
    bandwidth: float
    flops: Mapping[str, float]
    matmul: Mapping[str, float]
    streaming: Mapping[str, float]
    decode_attention: float
    prefill_attention: float
    attention_floor_s: float
    matmul_floor_s: float
    all_reduce_s: Mapping[int, tuple[float, float]]
    price_per_hour: float
    price_source: str = PRICE_SOURCE
    usable_source: str = "driver report"

    def all_reduce(self, tp: int) -> tuple[float, float]:
        """(seconds per call, seconds per byte) of an all-reduce over `tp` GPUs; zeros for one."""
        if tp == 1:
            return 0.0, 0.0
        latency, large = self.all_reduce_s[tp]
        return latency, (large - latency) / ALL_REDUCE_BYTES

    def priced(self, price_per_hour: float | None) -> Gpu:
        """With the user's own price."""
        if price_per_hour is None:
            return self
        if not 0 < price_per_hour < float("inf"):
            raise UserError(f"--price {price_per_hour}: USD per GPU-hour must be above 0, and finite")
        return replace(self, price_per_hour=price_per_hour, price_source="--price")


def _us(pairs: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    return {tp: (latency * 1e-6, large * 1e-6) for tp, (latency, large) in pairs.items()}


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "a100-80",
            79.15,
            2.039e12,
            {"bf16": 312e12},
            {"bf16": 0.91},
            {"bf16": 0.73},
            0.69,
            0.54,
            18e-6,
            4.6e-6,
            _us({2: (5.0, 126.0), 4: (5.3, 183.0), 8: (6.3, 214.0)}),
            2.70,
        ),
        Gpu(
            "h100",
            79.18,
            3.35e12,
            {"bf16": 989e12, "fp8": 1979e12},
            {"bf16": 0.80, "fp8": 0.53},
            {"bf16": 0.87, "fp8": 0.73},
            0.80,
            0.58,
            12e-6,
            3.1e-6,
            _us({2: (4.3, 81.0), 4: (4.7, 99.0), 8: (5.1, 92.0)}),
            6.16,
        ),
        Gpu(
            "h200",
            139.5,
            4.8e12,
            {"bf16": 989e12, "fp8": 1979e12},
            {"bf16": 0.77, "fp8": 0.60},
            {"bf16": 0.82, "fp8": 0.67},
            0.74,
            0.58,
            12e-6,
            3.1e-6,
            _us({2: (4.5, 77.0), 4: (4.6, 94.0), 8: (4.8, 87.0)}),
            6.31,
        ),
        Gpu(
            "b200",
            179.0,
            8.0e12,
            {"bf16": 2250e12, "fp8": 4500e12},
            {"bf16": 0.69, "fp8": 0.47},
            {"bf16": 0.77, "fp8": 0.54},
            0.78,
            0.49,
            9e-6,
            2.5e-6,
            _us({2: (7.0, 57.0), 4: (7.1, 68.0), 8: (7.8, 63.0)}),
            8.60,
        ),
        Gpu(
            "l40s",
            44.99,
            0.864e12,
            {"bf16": 362e12, "fp8": 733e12},
            {"bf16": 0.61, "fp8": 0.50},
            {"bf16": 0.82, "fp8": 0.70},
            0.73,
            0.49,
            12e-6,
            3.2e-6,
            _us({2: (5.6, 892.0), 4: (14.0, 6676.0), 8: (27.0, 15806.0)}),
            2.25,
        ),
    )
}


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case; UserError listing the known ones otherwise. No name is an alias of another."""
    key = name.strip().lower()
    if key not in GPUS:
        raise unknown("GPU", name, GPUS)
    return GPUS[key]
