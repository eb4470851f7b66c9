"""Which type of machine a night ran on: nights of different types are not compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")


def machine_type() -> str:
    """Processor, cores and GPUs, as far as the system tells: `Intel Xeon …, 16 cores, 1 × NVIDIA H200`."""
    gpus = [name for path in sorted(_GPUS.glob("*/information")) if (name := _field(path, "Model"))]
    parts = [_field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()]
    parts.append(f"{os.cpu_count()} cores")
    parts += [f"{gpus.count(name)} × {name}" for name in sorted(set(gpus))]
    return ", ".join(parts)


def _field(path: Path, name: str) -> str | None:
    """The first value of `name : value` lines."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)
