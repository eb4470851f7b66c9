"""`rotate_keys` on the GPU: one pass over the keys, and cosine and sine once for all heads that share offsets."""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import lines, on_device, slots

QUARTER = tl.constexpr(math.pi / 2)
TILE = 4096
"""Elements of a head turned at a time by a program of four warps."""
HEADS = 8
"""Heads turned by one program, where they share their offsets and there is work for all processors."""


@triton.jit
def _cos_sin(b_quarters):
    """Of an angle in quarter turns, float64, as float32 good to 2·10⁻⁷.

    It is reduced to half a quarter turn in float64: a float32 angle would be off by 0.03 at a million positions. There
    the series up to x¹⁰ are exact to float32; the quarter says which is which, and the signs.
    """
    b_whole = tl.floor(b_quarters + 0.5)
    b_quarter = b_whole.to(tl.int64).to(tl.int32) & 3
    b_x = (b_quarters - b_whole).to(tl.float32) * QUARTER
    b_xx = b_x * b_x
    b_s = b_x + b_x * b_xx * (-1 / 6 + b_xx * (1 / 120 + b_xx * (-1 / 5040 + b_xx * (1 / 362880))))
    b_c = 1 + b_xx * (-0.5 + b_xx * (1 / 24 + b_xx * (-1 / 720 + b_xx * (1 / 40320 + b_xx * (-1 / 3628800)))))
    m_odd = (b_quarter & 1) != 0
    b_cos = tl.where(m_odd, b_s, b_c)
    b_sin = tl.where(m_odd, b_c, b_s)
    return tl.where(((b_quarter + 1) & 2) != 0, -b_cos, b_cos), tl.where((b_quarter & 2) != 0, -b_sin, b_sin)


@triton.jit
def _rotate_kernel(
    keys,
    offsets,
    quarters,
    out,
    heads,
    count,
    stride_kh,
    stride_kn,
    stride_oh,
    stride_on,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """BLOCK_N tokens of up to HEADS heads: pairs (i, HALF + i) are turned, what lies beyond 2·HALF is copied."""
    p_n = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64) * HEADS
    o_n = p_n * BLOCK_N + tl.arange(0, BLOCK_N)
    o_f = tl.arange(0, BLOCK_F)
    o_p = 2 * HALF + tl.arange(0, BLOCK_P)
    m_n = o_n < count
    m_pair = m_n[:, None] & (o_f < HALF)
    m_past = m_n[:, None] & (o_p < DIM)
    b_offset = tl.load(offsets + p_h * stride_oh + o_n.to(tl.int64) * stride_on, mask=m_n, other=0).to(tl.float64)
    b_quarter = tl.load(quarters + o_f, mask=o_f < HALF, other=0.0)
    b_cos, b_sin = _cos_sin(b_offset[:, None] * b_quarter)
    for h in range(p_h, tl.minimum(p_h + HEADS, heads)):
        x = keys + h * stride_kh + o_n[:, None].to(tl.int64) * stride_kn
        y = out + (h * count + o_n[:, None]) * DIM
        b_first = tl.load(x + o_f, mask=m_pair, other=0.0)
        b_second = tl.load(x + HALF + o_f, mask=m_pair, other=0.0)
        b_past = tl.load(x + o_p, mask=m_past, other=0.0)
        b_one, b_two = b_first.to(tl.float32), b_second.to(tl.float32)
        tl.store(y + o_f, b_one * b_cos - b_two * b_sin, mask=m_pair)
        tl.store(y + HALF + o_f, b_two * b_cos + b_one * b_sin, mask=m_pair)
        tl.store(y + o_p, b_past, mask=m_past)


def rotate_keys(keys: Tensor, offsets: Tensor, frequencies: Tensor) -> Tensor:
    """As the public form, for checked tensors."""
    (count, dim), half = keys.shape[-2:], frequencies.shape[0]
    out = torch.empty(keys.shape, dtype=keys.dtype, device=keys.device)
    if not keys.numel():
        return out
    x = lines(keys.reshape(-1, count, dim))
    shared = offsets.dim() == 1
    places = offsets.expand(x.shape[0], -1) if shared else offsets.reshape(-1, count)
    rows, together = max(1, TILE // triton.next_power_of_2(dim)), HEADS if shared else 1
    blocks = triton.cdiv(count, rows)
    while together > 1 and blocks * triton.cdiv(x.shape[0], together) < slots(keys, 4):
        together //= 2
    with on_device(keys):
        _rotate_kernel[(blocks, triton.cdiv(x.shape[0], together))](
            x,
            places,
            frequencies.double() * (2 / math.pi),
            out,
            x.shape[0],
            count,
            *x.stride()[:2],
            *places.stride(),
            DIM=dim,
            HALF=half,
            HEADS=together,
            BLOCK_N=rows,
            BLOCK_F=triton.next_power_of_2(max(1, half)),
            BLOCK_P=triton.next_power_of_2(max(1, dim - 2 * half)),
            num_warps=4,
        )
    return out
