"""The shapes that are timed: those of the targets first, then others that policies run, for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """Sizes of one contest, in the names of `kernels.reference`; what an operation does not have is 1 or 0."""

    dtype: str
    heads: int
    count: int
    dim: int
    rows: int = 0
    group: int = 1
    keep: int = 0
    layers: int = 1
    shared: bool = False
    target: bool = False

    @property
    def torch_dtype(self) -> torch.dtype:
        """`float32` as torch has it."""
        return getattr(torch, self.dtype)

    def bytes(self, entries: int) -> int:
        """Of so many entries of this dtype."""
        return entries * self.torch_dtype.itemsize

    def __str__(self) -> str:
        sizes = {"H": self.heads, "G": self.group if self.group > 1 else 0, "R": self.rows, "n": self.count}
        sizes |= {"m": self.keep, "D": self.dim, "layers": self.layers if self.layers > 1 else 0}
        return " ".join(f"{name}={size}" for name, size in sizes.items() if size) + " shared" * self.shared


def shapes(op: str, device: torch.device, size: str) -> list[Shape]:
    """Of an operation; `quick` the first only, `toy` one that proves that it runs."""
    found = (ON_GPU if device.type == "cuda" else ON_CPU)[op]
    if size == "toy":
        return [_toy(found[0])]
    return found[:1] if size == "quick" else found


def _toy(shape: Shape) -> Shape:
    return Shape(
        shape.dtype,
        min(shape.heads, 2),
        48,
        64,
        min(shape.rows, 16),
        min(shape.group, 2),
        min(shape.keep, 8),
        min(shape.layers, 2),
        shape.shared,
        shape.target,
    )


def _f32(heads: int, count: int, dim: int, **more: int | bool) -> Shape:
    return Shape("float32", heads, count, dim, **more)  # type: ignore[arg-type]


def _bf16(heads: int, count: int, dim: int, **more: int | bool) -> Shape:
    return Shape("bfloat16", heads, count, dim, **more)  # type: ignore[arg-type]


ON_CPU = {
    "attention_mass": [
        _f32(3, 16_384, 64, rows=512, target=True),
        _bf16(4, 4_096, 128, rows=512),
        _f32(3, 512, 64, rows=1_024),
    ],
    "log_totals": [_f32(3, 8_192, 64, rows=512)],
    "decode_attention": [
        _f32(3, 8_192, 64, group=3, target=True),
        _bf16(4, 8_192, 128, group=4),
        _f32(3, 1_024, 64, group=3),
    ],
    "compact_kv": [
        _f32(3, 16_384, 64, keep=3_277, layers=4, target=True),
        _f32(3, 16_384, 64, keep=3_277, layers=4, shared=True),
        _bf16(4, 16_384, 128, keep=8_192, layers=4),
    ],
    "compact_blocks": [_f32(3, 16_384, 64, keep=3_277)],
    "ridge_fit": [_f32(3, 1_024, 64, rows=1_024, keep=205)],
    "merge_kv": [_f32(3, 4_096, 64, keep=820)],
    "k_means": [_f32(3, 2_048, 64, keep=410)],
    "rotate_keys": [_f32(9, 8_192, 64), _bf16(8, 8_192, 128)],
    "pool_topk": [_f32(90, 4_096, 1, keep=820)],
}
"""Head counts and sizes of the small model (3 KV heads of 64, 30 layers) and of a middle-sized one (128)."""

ON_GPU = {
    "attention_mass": [
        _bf16(4, 32_768, 256, rows=4_096, target=True),
        _bf16(8, 32_768, 128, rows=4_096, target=True),
        _bf16(8, 131_072, 128, rows=512, target=True),
        _bf16(1, 16_384, 128, rows=512),
        _bf16(4, 2_560, 256, rows=1_800),
        _f32(4, 16_384, 128, rows=1_024),
    ],
    "log_totals": [_bf16(8, 32_768, 128, rows=2_048)],
    "decode_attention": [
        _bf16(8, 32_768, 128, group=4, target=True),
        _bf16(4, 131_072, 256, group=6, target=True),
        _bf16(8, 8_192, 128, group=4),
        _bf16(64, 8_192, 128, group=4, target=True),
    ],
    "compact_kv": [
        _bf16(4, 32_768, 256, keep=6_554, layers=16, target=True),
        _bf16(8, 32_768, 128, keep=16_384, layers=16, target=True),
        _bf16(8, 32_768, 128, keep=6_554, layers=16, shared=True),
    ],
    "compact_blocks": [_bf16(8, 131_072, 128, keep=26_214)],
    "ridge_fit": [_bf16(4, 2_560, 256, rows=4_096, keep=512), _bf16(8, 4_096, 128, rows=2_048, keep=819)],
    "merge_kv": [_bf16(8, 32_768, 128, keep=6_554)],
    "k_means": [_bf16(8, 8_192, 128, keep=1_638)],
    "rotate_keys": [_bf16(64, 32_768, 128), _f32(16, 32_768, 256)],
    "pool_topk": [_f32(256, 32_768, 1, keep=6_554), _f32(64, 2_560, 1, keep=512)],
}
"""Of Qwen3.5-27B (4 KV heads of 256, 16 full layers) and of models with 8 KV heads of 128."""
