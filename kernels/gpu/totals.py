"""`log_totals` on the GPU, the first pass of `attention_mass`: the log-sum-exp of each query row over the keys.

A program holds a block of rows and streams the keys past it (online log-sum-exp), so that it reduces within threads.
Where there are too few rows to fill the device, the keys are cut and the partial results are combined in order.
"""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import LN2, LOG2E, Tiles, arithmetic, lines, on_device, pieces, products, rows_of, slots, tileable, within


@triton.jit
def _add_keys(
    b_top,
    b_sum,
    b_q,
    queries,
    first,
    rows,
    keys,
    bias,
    b_limits,
    begin,
    end,
    scale,
    stride_qr,
    stride_kn,
    columns,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMITS: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the keys `begin`…`end` to the running maximum t and sum s of each row, both (BLOCK_R,), in units of log 2.

    t′ = max(t, max_j l_j), s′ = s·2^(t − t′) + Σ_j 2^(l_j − t′): no logit is kept, and no sum overflows (the online
    softmax of arXiv 1805.02867). MASKED: some keys may be hidden from some rows.
    """
    for start in range(begin, end, BLOCK_N):
        b_dot = products(
            b_q, queries, first, rows, stride_qr, keys, start, end, stride_kn, columns,
            BLOCK_R, BLOCK_N, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
        )  # fmt: skip
        if HAS_BIAS or MASKED:
            o_n = start + tl.arange(0, BLOCK_N)
            b_logit = b_dot * scale
            if HAS_BIAS:
                b_logit += tl.load(bias + o_n, mask=o_n < end, other=0.0).to(tl.float32)[None, :] * LOG2E
            if MASKED:
                m_seen = (o_n < end)[None, :]
                if HAS_LIMITS:
                    m_seen = m_seen & (o_n[None, :] < b_limits[:, None])
                b_logit = tl.where(m_seen, b_logit, -float("inf"))
            b_new = tl.maximum(b_top, tl.max(b_logit, 1))
            # A row that has seen no key yet keeps −inf, and −inf − −inf is not a number.
            b_from = tl.where(b_new == -float("inf"), 0.0, b_new)
            b_exp = tl.exp2(b_logit - b_from[:, None])
        else:
            # The scale is positive: it may follow the maximum, and the logit becomes one fused multiply-add.
            b_new = tl.maximum(b_top, tl.max(b_dot, 1) * scale)
            b_from = b_new
            b_exp = tl.exp2(b_dot * scale - b_from[:, None])
        b_sum = b_sum * tl.exp2(b_top - b_from) + tl.sum(b_exp, 1)
        b_top = b_new
    return b_top, b_sum


@triton.jit
def _totals_kernel(
    queries,
    keys,
    bias,
    limits,
    totals,
    rows,
    count,
    columns,
    scale,
    splits,
    stride_qh,
    stride_qr,
    stride_kh,
    stride_kn,
    stride_bh,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMITS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Log-sum-exp of a block of rows over one piece of the keys, into `totals` (splits, H_kv, R)."""
    p_r = tl.program_id(0)
    p_s = tl.program_id(1)
    p_h = tl.program_id(2).to(tl.int64)
    first = p_r * BLOCK_R
    o_r = first + tl.arange(0, BLOCK_R)
    m_r = o_r < rows
    per = tl.cdiv(tl.cdiv(count, BLOCK_N), splits) * BLOCK_N
    begin = p_s * per
    end = tl.minimum(begin + per, count)
    seen_by_all = end
    b_limits = o_r
    if HAS_LIMITS:
        b_limits = within(tl.load(limits + o_r, mask=m_r, other=0), count)
        end = tl.minimum(end, tl.max(b_limits, 0))
        seen_by_all = tl.minimum(end, tl.min(tl.where(m_r, b_limits, count), 0))
    whole = begin + tl.maximum(seen_by_all - begin, 0) // BLOCK_N * BLOCK_N
    queries += p_h * stride_qh
    keys += p_h * stride_kh
    if HAS_BIAS:
        bias += p_h * stride_bh
    b_q = rows_of(queries, first, rows, stride_qr, columns, BLOCK_R, CHUNK, RAGGED, UPCAST)
    b_top = tl.full([BLOCK_R], -float("inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_R], tl.float32)
    b_top, b_sum = _add_keys(
        b_top, b_sum, b_q, queries, first, rows, keys, bias, b_limits, begin, whole, scale, stride_qr, stride_kn,
        columns, BLOCK_R, BLOCK_N, BLOCK_D, CHUNK, RAGGED, HAS_BIAS, HAS_LIMITS, False, UPCAST, PRECISION,
    )  # fmt: skip
    b_top, b_sum = _add_keys(
        b_top, b_sum, b_q, queries, first, rows, keys, bias, b_limits, whole, end, scale, stride_qr, stride_kn,
        columns, BLOCK_R, BLOCK_N, BLOCK_D, CHUNK, RAGGED, HAS_BIAS, HAS_LIMITS, True, UPCAST, PRECISION,
    )  # fmt: skip
    # Not `> 0`: a sum that is no number must be seen.
    m_some = b_sum != 0
    b_total = tl.where(m_some, (b_top + tl.log2(tl.where(m_some, b_sum, 1.0))) * LN2, -float("inf"))
    out = totals + (p_s.to(tl.int64) * tl.num_programs(2) + p_h) * rows
    tl.store(out + o_r, b_total, mask=m_r)


def log_totals(
    queries: Tensor, keys: Tensor, scaling: float, *, limits: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`reference.log_totals`: (H_kv, R, D), (H_kv, n, D) → (H_kv, R) float32, −inf for a row that sees no key.

    ValueError for a scaling that is not positive and for rows that are not `tileable`.
    """
    parts = partial_totals(queries, keys, scaling, limits, bias)
    return parts[0] if len(parts) == 1 else parts.logsumexp(0)


def partial_totals(queries: Tensor, keys: Tensor, scaling: float, limits: Tensor | None, bias: Tensor | None) -> Tensor:
    """Log-sum-exps over consecutive pieces of the keys, (pieces, H_kv, R): their log-sum-exp is that over all."""
    checked(queries, keys, scaling)
    bias = None if bias is None else lines(bias)
    limits = None if limits is None else lines(limits)
    heads, rows, dim = queries.shape
    count, tiles = keys.shape[1], Tiles.of(keys)
    blocks = triton.cdiv(rows, tiles.held)
    splits = pieces(heads * blocks, triton.cdiv(count, tiles.streamed), slots(keys, tiles.per_processor))
    totals = torch.empty(splits, heads, rows, dtype=torch.float32, device=keys.device)
    with on_device(keys):
        _totals_kernel[(blocks, splits, heads)](
            queries,
            keys,
            bias,
            limits,
            totals,
            rows,
            count,
            dim,
            scaling * LOG2E.value,
            splits,
            queries.stride(0),
            queries.stride(1),
            keys.stride(0),
            keys.stride(1),
            0 if bias is None else bias.stride(0),
            BLOCK_R=tiles.held,
            BLOCK_N=tiles.streamed,
            HAS_BIAS=bias is not None,
            HAS_LIMITS=limits is not None,
            **arithmetic(keys),
            **tiles.launch(),
        )
    return totals


def checked(queries: Tensor, keys: Tensor, scaling: float) -> None:
    """ValueError for a scaling that is not positive and for rows that are not `tileable`."""
    if not scaling > 0:
        raise ValueError(f"scaling must be positive, not {scaling}")
    tileable(queries=queries, keys=keys)
