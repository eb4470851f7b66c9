"""Comparison cases of the kernels: one drawn problem each, an implementation's answer, and the reference in float64.

Tests and `gpu_check` run the same cases. Nothing but torch and `kvmill.kernels` is imported, and triton not even that:
it runs on a bare GPU machine. `kernel_problems` holds the problems of every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

Operation = Callable[..., Any]
MODULES = {
    "attention_mass": "mass",
    "log_totals": "mass",
    "attention_use": "mass",
    "decode_attention": "decode",
    "ridge_fit": "fit",
    "heldout_fit": "fit",
    "compact_kv": "compact",
    "compact_blocks": "compact",
    "merge_kv": "merge",
    "k_means": "merge",
    "rotate_keys": "rotate",
    "pool_topk": "topk",
}
"""Operation → the file of `kvmill.kernels` that holds it; its tests are `tests/kernels/test_FILE*.py`."""
CLOSE = 1e-5
"""What a float32 result may be off by, relative to the largest entry of the truth."""


def operation(name: str) -> Operation:
    """The public function of that name, which takes `impl`."""
    return getattr(import_module(f"kvmill.kernels.{MODULES[name]}"), name)


class Draw:
    """Random inputs: drawn on the CPU from a seed, rounded to a dtype, the same on every machine.

    `wide` gives the same rounded numbers as float64: what the reference is asked about. `there` draws on the device
    itself, which is quicker for what is only timed.
    """

    def __init__(
        self, seed: int, dtype: torch.dtype, device: torch.device, *, wide: bool = False, there: bool = False
    ) -> None:
        self.dtype, self.device, self.wide = dtype, device, wide
        self._place = device if there else torch.device("cpu")
        self._random = torch.Generator(self._place).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers in the case's dtype."""
        return self.given(self.raw(*shape) * scale, self.dtype)

    def floats(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers in float32, whatever the case's dtype: biases, totals, weights."""
        return self.given(self.raw(*shape) * scale, torch.float32)

    def raw(self, *shape: int) -> Tensor:
        """Normal numbers in float32 where they are drawn, to be made into something and then `given`."""
        return torch.randn(shape, generator=self._random, device=self._place)

    def given(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """These numbers, rounded to `dtype`."""
        return (x.to(dtype).double() if self.wide else x.to(dtype)).to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self._random, device=self._place).to(self.device)

    def ascending(self, lists: int, count: int, keep: int) -> Tensor:
        """(lists, keep) different indices below `count`, ascending."""
        order = torch.rand(lists, count, generator=self._random, device=self._place).argsort(-1)
        return order[:, :keep].sort(-1).values.to(self.device)


Problem = Callable[[Draw, Operation], Sequence[Tensor | None]]
"""Draws inputs, calls the operation, and returns what counts of its answer."""


@dataclass(frozen=True)
class Case:
    """One problem in one dtype; `allowed` is the error of float32 results, where rounding is not all there is."""

    op: str
    label: str
    dtype: torch.dtype
    problem: Problem
    allowed: float = CLOSE

    def answer(self, impl: str, device: torch.device) -> list[Tensor]:
        """What an implementation says."""
        return self._run(Draw(self._seed, self.dtype, device), impl)

    def truth(self, device: torch.device) -> list[Tensor]:
        """The float64 reference on the rounded inputs."""
        return self._run(Draw(self._seed, self.dtype, device, wide=True), "reference")

    def error(self, impl: str, device: torch.device) -> float:
        """The largest deviation from the truth in units of what is allowed: at most 1 is right."""
        with poisoned():
            found = self.answer(impl, device)
        truth = self.truth(device)
        if len(found) != len(truth):
            raise ValueError(f"{len(found)} results, the reference has {len(truth)}")
        return max((deviation(x, y, self.allowed) for x, y in zip(found, truth, strict=True)), default=0.0)

    @property
    def _seed(self) -> int:
        return sum((i + 1) * ord(c) for i, c in enumerate(f"{self.op} {self.label}"))

    def _run(self, draw: Draw, impl: str) -> list[Tensor]:
        found = self.problem(draw, partial(operation(self.op), impl=impl))
        return [x for x in found if x is not None]


def deviation(found: Tensor, truth: Tensor, allowed: float) -> float:
    """The largest error of `found` in units of what its dtype allows; infinite for another shape or a missing number.

    float32: `allowed` times the largest finite magnitude of the truth. Half precision: one unit in the last place on
    top, as the result itself is rounded. Integers and booleans must be equal; infinities must be the same ones.
    """
    if found.shape != truth.shape:
        return float("inf")
    if not found.is_floating_point():
        return 0.0 if torch.equal(found, truth) else float("inf")
    if not found.numel():
        return 0.0
    x, y = found.double(), truth.double()
    finite = y.isfinite()
    if not torch.equal(x.masked_fill(finite, 0.0), y.masked_fill(finite, 0.0)):
        return float("inf")
    y = y.masked_fill(~finite, 0.0)
    bound = (allowed * y.abs().max()).clamp_min(torch.finfo(torch.float32).tiny).expand_as(y)
    if found.dtype in (torch.float16, torch.bfloat16):
        bound = bound + torch.finfo(found.dtype).eps * y.abs()
    missed = (x.masked_fill(~finite, 0.0) - y).abs() / bound
    return float(missed.nan_to_num(nan=float("inf")).max())


def poisoned() -> AbstractContextManager[None]:
    """Uninitialised memory is NaN (and the largest number in integers), so that an entry nobody writes is seen."""

    def poison(x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x.fill_(float("nan"))
        return x.fill_(True if x.dtype == torch.bool else torch.iinfo(x.dtype).max)

    return new_memory(poison)


@contextmanager
def new_memory(fill: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """What `torch.empty`, `empty_like` and `new_empty` return goes through `fill`."""

    def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, **kwargs: fill(make(*args, **kwargs))

    before = torch.empty, torch.empty_like, Tensor.new_empty
    torch.empty, torch.empty_like = filled(torch.empty), filled(torch.empty_like)
    Tensor.new_empty = filled(Tensor.new_empty)  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.empty, torch.empty_like, Tensor.new_empty = before  # type: ignore[method-assign]
