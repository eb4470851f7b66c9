"""Which type of machine a replay ran on: figures of different types are not compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")


def machine_type() -> str:
    """Processor, cores and GPUs, as far as the system tells: `Intel Xeon …, 16 cores, 1 × NVIDIA H200`."""
    gpus = _gpus()
    parts = [processor(), f"{os.cpu_count()} cores"]
    parts += [f"{gpus.count(name)} × {name}" for name in sorted(set(gpus))]
    return ", ".join(parts)


def processor(*, gpu: bool = False) -> str:
    """The name of the processor, or of the GPUs of this machine, each once."""
    if gpu:
        return ", ".join(sorted(set(_gpus()))) or "unknown GPU"
    return _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _gpus() -> list[str]:
    return [name for path in sorted(_GPUS.glob("*/information")) if (name := _field(path, "Model"))]


def _field(path: Path, name: str) -> str | None:
    """The first value of `name : value` lines."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)
