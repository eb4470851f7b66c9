"""The two ceilings of a device, measured: bytes copied per second, and operations per second of a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .timing import Form, Times, compared

COPIED_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}
SIDE = {"cpu": 1536, "cuda": 8192}


@dataclass(frozen=True)
class Roofline:
    """`copy_bytes_per_s` counts what is read and what is written; `flops_per_s` is by dtype name, on random numbers."""

    copy_bytes_per_s: float
    flops_per_s: dict[str, float]

    def floor_s(self, moved_bytes: int, flops: int, dtype: str) -> float:
        """The seconds below which no form can go: the larger of moving the bytes and doing the operations."""
        return max(moved_bytes / self.copy_bytes_per_s, flops / self.flops_per_s[dtype])


def measure(device: torch.device, dtypes: Sequence[torch.dtype], budget_s: float, *, toy: bool = False) -> Roofline:
    """Both ceilings; `toy` sizes prove that it runs, and are no figures."""
    size = 1 << 16 if toy else COPIED_BYTES[device.type]
    source = torch.randint(256, (size // 2,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = _one(lambda _: target.copy_(source), device, budget_s)
    rates: dict[str, float] = {}
    side = 64 if toy else SIDE[device.type]
    for dtype in dtypes:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        product = _one(lambda _, a=a, b=b: a @ b, device, budget_s)
        rates[str(dtype).removeprefix("torch.")] = 2 * side**3 / product.seconds
    return Roofline(size / copied.seconds, rates)


def _one(form: Form, device: torch.device, budget_s: float) -> Times:
    found = compared({"it": form}, [None], device, budget_s)["it"]
    if not isinstance(found, Times):
        raise RuntimeError(found)
    return found
