"""Compiles every Triton kernel for an H200 on a machine without one, and prints what came out as JSON.

Run as a program of its own: the interpreter, which the tests use, replaces the compiler when `triton.jit` decorates.
A kernel is "launched" on CPU tensors and compiled for the types, strides and constants it was given; nothing runs.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kvmill.kernels.gpu import compact, merge, rotate, topk

HEADS, ROWS, KEPT = 4, 300, 60
FOUND: list[dict[str, Any]] = []


class NoGpu:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        """Compute capability 9.0, warps of 32."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        """The default one."""
        return 0


def compile_only(run: Any) -> Any:
    """`JITFunction.run` that compiles, notes the kernel and launches nothing."""

    def compiled(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        wide = "ld.global.v4.b32" in kernel.asm["ptx"]
        FOUND.append({"kernel": self.fn.__name__, "shared_bytes": kernel.metadata.shared, "wide_loads": wide})
        return kernel

    return compiled


def compile_all() -> None:
    """Each operation with and without its options."""
    lists = torch.zeros(2, HEADS, KEPT, dtype=torch.long)
    lengths, table, index = lists[..., 0].contiguous(), torch.arange(20), torch.arange(KEPT)
    for dtype, dim in ((torch.bfloat16, 128), (torch.float32, 80)):
        keys = torch.zeros(2, HEADS, ROWS, dim, dtype=dtype)
        paged = torch.zeros(2, 20, HEADS, 16, dim, dtype=dtype)
        for stack in (keys, list(keys.unbind(0))):
            for in_place in (False, True):
                compact.compact_kv(stack, stack, lists, in_place=in_place)
                compact.compact_kv(stack, stack, lists, lengths=lengths, in_place=in_place)
        compact.compact_blocks(paged, paged, table, ROWS, index)
        weights, order = torch.zeros(HEADS, ROWS), torch.zeros(HEADS, ROWS, dtype=torch.long)
        starts = torch.zeros(HEADS, KEPT + 1, dtype=torch.long)
        merge.merge_kv(keys[0], keys[0], order, starts)
        merge.merge_kv(keys[0], keys[0], order, starts, key_weights=weights, value_weights=weights, counts=weights)
        for places in (torch.arange(ROWS), torch.zeros(HEADS, ROWS)):
            rotate.rotate_keys(keys[0], places, torch.ones(dim // 4))
    for dim in (64, 80, 512):
        points = torch.zeros(HEADS, ROWS, dim)
        merge.nearest(points, points[:, :KEPT])
        merge.nearest_earlier(points)
    for forced in (None, torch.zeros(HEADS, ROWS, dtype=torch.bool)):
        for kernel in (1, 5):
            topk.pool_topk(torch.zeros(HEADS, ROWS), KEPT, forced, kernel=kernel, pooling="max")


if __name__ == "__main__":
    driver.set_active(NoGpu())
    JITFunction.run = compile_only(JITFunction.run)
    torch.empty = torch.zeros  # nothing runs, so what an operation reads back must not be what the memory held
    compile_all()
    print(json.dumps(FOUND))
