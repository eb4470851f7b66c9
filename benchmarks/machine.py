"""What a figure was measured on: processor, versions, date, and how busy others kept it."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "triton", "transformers")
BUSY_CORES = 0.2
"""Cores that others may use before a timing is called disturbed: a parallel region waits for its slowest thread."""


def identity(device: torch.device) -> dict[str, Any]:
    """Device, threads, versions and date of a row."""
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def versions() -> dict[str, str | None]:
    """Python and the packages that matter; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def other_cores(seconds: float = 0.5) -> float | None:
    """How many cores other processes used during the next `seconds`; None where the system does not tell (no /proc)."""
    before, own, start = _busy_s(), _own_s(), time.monotonic()
    if before is None:
        return None
    time.sleep(seconds)
    after = _busy_s()
    assert after is not None
    used = after - before - (_own_s() - own)
    return max(0.0, used / (time.monotonic() - start))


def _busy_s() -> float | None:
    """Core-seconds of the whole machine that were neither idle nor waiting for a disk."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    spent = os.times()
    return spent.user + spent.system
