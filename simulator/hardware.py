"""From the name of a GPU to what it can do: the catalogue, a user's TOML, or a name that such a file defines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..console import table
from ..errors import UserError, unknown
from .gpu import Gpu
from .gpu_file import read_calibration, read_gpu
from .gpus import GPUS

COLUMNS = {
    "gpu": "GPU",
    "usable_gib": "GiB",
    "bandwidth_gb_s": "GB/s",
    "bf16_tflops": "bf16 TFLOPS",
    "fp8_tflops": "fp8 TFLOPS",
    "bf16_matmul": "bf16 reached",
    "fp8_matmul": "fp8 reached",
    "decode_attention": "cache read",
    "price_per_hour": "USD/h",
    "price_source": "price",
    "efficiency_source": "efficiencies",
}
VARIABLE = "KVMILL_GPUS"  # TOML files, or folders of them, separated as in PATH


def find_gpu(name: str, calibration: str | Path | None = None) -> Gpu:
    """The GPU of that name, in any case, or of a TOML file; `calibration` is a file laid over it.

    UserError listing the known ones otherwise. No name is an alias of another.
    """
    gpu = read_gpu(name) if name.endswith(".toml") else _named(name)
    return read_calibration(calibration).applied(gpu) if calibration is not None else gpu


def _named(name: str) -> Gpu:
    key = name.strip().lower()
    if key in GPUS:
        return GPUS[key]
    own = own_gpus()
    if key not in own:
        raise unknown("GPU", name, [*GPUS, *own])
    return own[key]


def own_gpus() -> dict[str, Gpu]:
    """The GPUs of the files that KVMILL_GPUS lists. UserError when two have the same name."""
    found: dict[str, Gpu] = {}
    for part in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        where = Path(part).expanduser()
        for file in sorted(where.glob("*.toml")) if where.is_dir() else [where]:
            gpu = read_gpu(file)
            if gpu.name in found:
                raise UserError(f"{VARIABLE}: two files define the GPU {gpu.name}")
            found[gpu.name] = gpu
    return found


def gpu_rows() -> list[dict[str, Any]]:
    """What is known of every GPU, a row each, with the source of every figure that was not measured on it."""
    return [gpu_row(gpu) for gpu in (*GPUS.values(), *own_gpus().values())]


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """One GPU in the units that people speak of; what is unknown is null."""
    return {
        "gpu": gpu.name,
        "usable_gib": gpu.usable_gib,
        "bandwidth_gb_s": gpu.bandwidth / 1e9,
        "bf16_tflops": gpu.flops["bf16"] / 1e12,
        "fp8_tflops": gpu.flops["fp8"] / 1e12 if "fp8" in gpu.flops else None,
        "bf16_matmul": gpu.matmul["bf16"],
        "fp8_matmul": gpu.matmul.get("fp8"),
        "decode_attention": gpu.decode_attention,
        "host_link_gb_s": gpu.link_bandwidth / 1e9,
        "price_per_hour": gpu.price_per_hour,
        "price_source": gpu.price_source,
        "usable_source": gpu.usable_source,
        "efficiency_source": gpu.efficiency_source,
        "all_reduce_source": gpu.all_reduce_source,
        "link_source": gpu.link_source,
    }


def gpus_text(rows: list[dict[str, Any]]) -> str:
    """The GPUs as a table; sources in words."""
    legend = (
        "GiB: usable memory. GB/s, TFLOPS: peaks of the data sheet. reached, cache read: shares of these that large "
        "products and decode attention reach, as efficiencies say."
    )
    return f"{table(rows, COLUMNS)}\n\n{legend}"
