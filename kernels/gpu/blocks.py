"""What the kernels share: tiles of rows on the device side; sizes and launches on the host side.

Logits are kept in units of log 2, as `exp2` is what the hardware computes: scale, bias and totals are multiplied by
log₂ e once per row or column, never per logit.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checks import rows_contiguous
from ..dispatch import interpreted

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2))
SLACK = 1.1
HOPPER_PROCESSORS = 132
REACH = (1 << 24) - 1024
"""How far apart the rows of a tile may lie, in numbers: the last of 128 is then within an offset of 32 bits."""
MOST_HEADS = 65_535
"""What CUDA allows a grid beyond its first dimension."""


@triton.jit
def within(b_x, count):
    """Numbers of keys, of any integer type, cut to 0…count: then they fit into 32 bits."""
    return tl.minimum(tl.maximum(b_x, 0), count).to(tl.int32)


@triton.jit
def rows_of(
    base,
    first,
    last,
    stride,
    columns,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    RAGGED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Rows `first`… of a matrix as a (BLOCK, BLOCK_D) tile, zeros from row `last` on, and if RAGGED past `columns`."""
    o_r = tl.arange(0, BLOCK)
    o_d = tl.arange(0, BLOCK_D)
    m_tile = (first + o_r < last)[:, None]
    if RAGGED:
        m_tile = m_tile & (o_d < columns)[None, :]
    # The tile's own offsets are small and the same for all tiles: only its first row needs 64 bits.
    start = base + tl.cast(first, tl.int64) * stride
    b_tile = tl.load(start + (o_r[:, None] * stride + o_d[None, :]), mask=m_tile, other=0.0)
    if UPCAST:
        b_tile = b_tile.to(tl.float32)
    return b_tile


@triton.jit
def products(
    b_held,
    held,
    held_first,
    held_last,
    held_stride,
    streamed,
    first,
    last,
    stride,
    columns,
    BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Inner products of the rows of two matrices, (BLOCK_H, BLOCK_S), CHUNK columns at a time.

    `b_held` is the first chunk of the held rows, loaded once: all of them where CHUNK is BLOCK_D.
    """
    b_streamed = rows_of(streamed, first, last, stride, columns, BLOCK_S, CHUNK, RAGGED, UPCAST)
    b_product = tl.dot(b_held, tl.trans(b_streamed), input_precision=PRECISION)
    if CHUNK < BLOCK_D:
        for c in range(CHUNK, columns, CHUNK):
            b_more = rows_of(held + c, held_first, held_last, held_stride, columns - c, BLOCK_H, CHUNK, RAGGED, UPCAST)
            b_streamed = rows_of(streamed + c, first, last, stride, columns - c, BLOCK_S, CHUNK, RAGGED, UPCAST)
            b_product = tl.dot(b_more, tl.trans(b_streamed), b_product, input_precision=PRECISION)
    return b_product


def padded(width: int) -> int:
    """The width of a tile that holds `width` columns: a power of two that the matrix units take."""
    return max(16, triton.next_power_of_2(width))


def arithmetic(x: Tensor) -> dict[str, Any]:
    """How a kernel multiplies inputs of this type.

    Half precision goes to the tensor cores as it is, which add in float32; the interpreter knows no bfloat16 and gets
    it widened. float32 is split into two parts of 10 bits and multiplied in three products, which loses 2⁻²². Its parts
    live in registers, so it goes a chunk of columns at a time, as do rows too wide for shared memory.
    """
    single = x.dtype == torch.float32
    width = padded(x.shape[-1])
    return {
        "BLOCK_D": width,
        "CHUNK": min(width, 64) if single or width > 512 else width,
        "RAGGED": width != x.shape[-1],
        "UPCAST": interpreted() and not single,
        "PRECISION": "tf32x3",
    }


def slots(x: Tensor, per_processor: int) -> int:
    """How many programs run at once, `per_processor` on each multiprocessor; under the interpreter one does."""
    if interpreted():
        return 1
    # Tensors elsewhere only stand for a GPU's, to compile kernels without one.
    return per_processor * (_processors(x.device.index) if x.is_cuda else HOPPER_PROCESSORS)


@cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def pieces(programs: int, steps: int, room: int) -> int:
    """Into how many pieces to cut the `steps` of each program's loop, where `room` programs run at once.

    The fewest that take little longer than the best: waves of programs, times the steps of the longest piece and one
    more for its start and end. Each piece costs a partial result.
    """
    return 1 if programs == 0 or steps <= 1 else _fewest(programs, steps, room)


@lru_cache(4096)
def _fewest(programs: int, steps: int, room: int) -> int:
    cost = [-(-programs * n // room) * (-(-steps // n) + 1) for n in range(1, min(steps, room) + 1)]
    return next(n for n, steps_taken in enumerate(cost, 1) if steps_taken <= SLACK * min(cost))


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Launches go to the current device: make it that of `x`."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def tileable(**tensors: Tensor) -> None:
    """ValueError unless all are (heads, rows, D) as kernels read them: contiguous rows, not too far nor too many."""
    for name, x in tensors.items():
        rows_contiguous(name, x)
        if x.shape[1] > 1 and x.stride(1) > REACH:
            raise ValueError(f"{name} has rows {x.stride(1)} numbers apart, and kernels reach {REACH}: copy it")
        if x.shape[0] > MOST_HEADS:
            raise ValueError(f"{name} has {x.shape[0]} heads, and kernels take {MOST_HEADS}: split the batch")


def lines(x: Tensor) -> Tensor:
    """`x` with a contiguous last dimension; heads that share one line keep sharing it."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


@dataclass(frozen=True)
class Tiles:
    """Rows of the tile that is held and of those streamed past it, and how a program runs.

    Two programs of 8 warps share a multiprocessor where shared memory allows, which leaves a thread 128 registers: the
    exponentials of one run under the products of the other.
    """

    held: int
    streamed: int
    warps: int
    stages: int
    per_processor: int

    @classmethod
    def of(cls, x: Tensor) -> Tiles:
        """By the width of a row and its type."""
        if x.dtype == torch.float32:
            return cls(64, 64, 4, 2, 1)
        width = padded(x.shape[-1])
        if width <= 64:
            return cls(128, 128, 8, 3, 2)
        if width <= 128:
            return cls(128, 128, 8, 2, 2)
        return cls(128, 128, 8, 2, 1) if width <= 256 else cls(64, 64, 4, 2, 1)

    def launch(self) -> dict[str, int | None]:
        """What Triton is told."""
        registers = 128 if self.warps * self.per_processor == 16 else None
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": registers}
