"""The normal equations of a fit, AᵀA and Aᵀr, without A: its entries are formed in registers and multiplied at once.

A tile of the sums belongs to one program, which streams the query rows past its kept keys. Where tiles are too few to
fill the device, the rows are cut, and the partial sums are added in order. Entries are float32 numbers, split into two
parts of 10 bits for the tensor cores: the condition of these equations is 1/λ, which half precision could not carry.
"""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import LOG2E, arithmetic, on_device, padded, pieces, products, rows_of, slots

PARTIAL_BYTES = 1 << 28
"""Most memory for partial sums."""


@triton.jit
def _entries(
    b_k,
    keys,
    first,
    kept,
    queries,
    start,
    end,
    column_bias,
    b_shift,
    b_gain,
    columns,
    scale,
    stride_kn,
    stride_qr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Aᵀ of a block of rows and a block of kept keys, (BLOCK_M, BLOCK_R): exp(logit + bias − shift)·gain."""
    b_dot = products(
        b_k, keys, first, kept, stride_kn, queries, start, end, stride_qr, columns,
        BLOCK_M, BLOCK_R, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
    )  # fmt: skip
    o_m = first + tl.arange(0, BLOCK_M)
    b_bias = tl.load(column_bias + o_m, mask=o_m < kept, other=-float("inf")) * LOG2E
    return tl.exp2(b_dot * scale + (b_bias[:, None] - b_shift[None, :])) * b_gain[None, :]


@triton.jit
def _normal_kernel(
    queries,
    keys,
    bias,
    shifts,
    gains,
    right,
    sums,
    rows,
    kept,
    columns,
    width,
    scale,
    across,
    stride_qh,
    stride_qr,
    stride_kh,
    stride_kn,
    GRAM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of AᵀA (GRAM) or of Aᵀr over one piece of the rows, into `sums` (splits, H_kv, m, m or width).

    Tile (p_i, p_j) is Σ over blocks of rows of A_iᵀ·A_j, (BLOCK_M, BLOCK_R)·(BLOCK_R, BLOCK_M), or of A_iᵀ·r_j: what
    `_entries` forms of A lives for one block. A and r both carry the gains of the rows.
    """
    p_i = tl.program_id(0) // across
    p_j = tl.program_id(0) % across
    p_s = tl.program_id(1)
    p_h = tl.program_id(2).to(tl.int64)
    # AᵀA is symmetric: a tile above the diagonal is written with its mirror image.
    if GRAM and p_j > p_i:
        return
    first = p_i * BLOCK_M
    first_j = p_j * BLOCK_J
    per = tl.cdiv(tl.cdiv(rows, BLOCK_R), tl.num_programs(1)) * BLOCK_R
    begin = p_s * per
    end = tl.minimum(begin + per, rows)
    queries += p_h * stride_qh
    keys += p_h * stride_kh
    bias += p_h * kept
    b_i = rows_of(keys, first, kept, stride_kn, columns, BLOCK_M, CHUNK, RAGGED, UPCAST)
    b_j = b_i
    if GRAM:
        b_j = rows_of(keys, first_j, kept, stride_kn, columns, BLOCK_M, CHUNK, RAGGED, UPCAST)
    else:
        right += p_h * rows * width + first_j
    o_j = first_j + tl.arange(0, BLOCK_J)
    b_sum = tl.zeros([BLOCK_M, BLOCK_J], tl.float32)
    for start in range(begin, end, BLOCK_R):
        o_r = start + tl.arange(0, BLOCK_R)
        m_r = o_r < end
        b_shift = tl.load(shifts + p_h * rows + o_r, mask=m_r, other=float("inf")) * LOG2E
        b_gain = tl.load(gains + p_h * rows + o_r, mask=m_r, other=0.0)
        b_a = _entries(
            b_i, keys, first, kept, queries, start, end, bias, b_shift, b_gain, columns, scale, stride_kn, stride_qr,
            BLOCK_M, BLOCK_R, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
        )  # fmt: skip
        if GRAM:
            b_b = _entries(
                b_j, keys, first_j, kept, queries, start, end, bias, b_shift, b_gain, columns, scale, stride_kn,
                stride_qr, BLOCK_M, BLOCK_R, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
            )  # fmt: skip
            b_sum = tl.dot(b_a, tl.trans(b_b), b_sum, input_precision=PRECISION)
        else:
            b_r = rows_of(right, start, end, width, width - first_j, BLOCK_R, BLOCK_J, True, False)
            b_sum = tl.dot(b_a, b_r * b_gain[:, None], b_sum, input_precision=PRECISION)
    o_i = first + tl.arange(0, BLOCK_M)
    out = sums + (p_s.to(tl.int64) * tl.num_programs(2) + p_h) * kept * width
    m_out = (o_i < kept)[:, None] & (o_j < width)[None, :]
    tl.store(out + o_i[:, None].to(tl.int64) * width + o_j[None, :], b_sum, mask=m_out)
    if GRAM and p_j < p_i:
        tl.store(out + o_j[None, :].to(tl.int64) * width + o_i[:, None], b_sum, mask=m_out)


def normal_sums(
    queries: Tensor, keys: Tensor, scaling: float, bias: Tensor, shift: Tensor, gains: Tensor, residual: Tensor | None
) -> Tensor:
    """AᵀA (H, m, m) float32, or Aᵀ(residual·gains) (H, m, k) where there is a residual (H, R, k).

    A (H, R, m) = exp(logits of (H, R, D) queries and (H, m, D) keys + bias (H, m) − shift (H, R))·gains (H, R).
    """
    (heads, rows, dim), kept = queries.shape, keys.shape[1]
    width = kept if residual is None else residual.shape[-1]
    wide = keys.dtype == torch.float32 or padded(dim) > 256
    block_m, block_r, warps = (64, 16 if padded(dim) > 256 else 32, 4) if wide else (128, 32, 8)
    block_j = block_m if residual is None else min(64, padded(width))
    down, across = triton.cdiv(kept, block_m), triton.cdiv(width, block_j)
    splits = pieces(heads * down * across, triton.cdiv(rows, block_r), slots(keys, 1))
    splits = min(splits, max(1, PARTIAL_BYTES // max(1, heads * kept * width * 4)))
    sums = torch.empty(splits, heads, kept, width, dtype=torch.float32, device=keys.device)
    with on_device(keys):
        _normal_kernel[(down * across, splits, heads)](
            queries,
            keys,
            bias.contiguous(),
            shift.contiguous(),
            gains.contiguous(),
            None if residual is None else residual.contiguous(),
            sums,
            rows,
            kept,
            dim,
            width,
            scaling * LOG2E.value,
            across,
            queries.stride(0),
            queries.stride(1),
            keys.stride(0),
            keys.stride(1),
            GRAM=residual is None,
            BLOCK_M=block_m,
            BLOCK_J=block_j,
            BLOCK_R=block_r,
            num_warps=warps,
            num_stages=2,
            **arithmetic(keys),
        )
    return sums.sum(0)
