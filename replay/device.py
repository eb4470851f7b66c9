"""Which device, dtype and thread count a replay uses: asked for, or chosen from what the machine has."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import torch

from ..errors import UserError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FASTER = 1.3  # bfloat16 must beat float32 by this factor to be chosen on a CPU without matrix units


def choose_device(asked: str) -> torch.device:
    """`auto` is CUDA where torch sees it, else the CPU. UserError on a device that is not there."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise unknown("device", asked, ["auto", "cpu", "cuda", "cuda:N"]) from None
    if device.type not in ("cpu", "cuda"):
        raise unknown("device", asked, ["auto", "cpu", "cuda", "cuda:N"])
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {asked}: this torch ({torch.__version__}) sees {torch.cuda.device_count()} CUDA devices"
        )
    return device


def choose_dtype(asked: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA, and on a CPU where it is faster (see `cpu_prefers_bfloat16`); else float32."""
    if asked == "auto":
        return torch.bfloat16 if device.type == "cuda" or cpu_prefers_bfloat16() else torch.float32
    if asked not in DTYPES:
        raise unknown("dtype", asked, ["auto", *DTYPES])
    return DTYPES[asked]


@functools.cache
def cpu_prefers_bfloat16() -> bool:
    """Whether matrix products run faster in bfloat16 on this CPU.

    With bfloat16 matrix units (AMX): yes. With only vector instructions for it (AVX512_BF16) the answer differs by
    processor, so a 256 × 576 × 1536 product is timed, best of seven each, one thread. Without either: no.
    """
    features = cpu_features()
    if "amx_bf16" in features:
        return True
    if "avx512_bf16" not in features:
        return False
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _seconds(torch.float32) > _FASTER * _seconds(torch.bfloat16)
    finally:
        torch.set_num_threads(threads)


def cpu_features() -> frozenset[str]:
    """The CPU's feature flags as Linux lists them; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return frozenset()
    lines = (line.partition(":") for line in info.read_text().splitlines())
    flags = next((value for key, _, value in lines if key.strip() in ("flags", "Features")), "")
    return frozenset(flags.split())


def choose_threads(asked: int | None) -> int:
    """Torch's threads: as asked, else OMP_NUM_THREADS, else the physical cores this process may use."""
    if asked is not None:
        if asked < 1:
            raise UserError(f"threads must be at least 1, not {asked}")
        return asked
    if (given := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(given) > 0:
        return int(given)
    import psutil  # here, so that a bare GPU machine needs it only when it must count cores

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable))


def _seconds(dtype: torch.dtype) -> float:
    rows, weight = torch.ones(256, 576, dtype=dtype), torch.ones(1536, 576, dtype=dtype)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        best = min(best, time.perf_counter() - start)
    return best
