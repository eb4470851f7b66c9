"""Attention of query rows over keys and values, split over the keys and merged by log-sum-exp.

What a decode step and the fits share. A program holds the rows of a KV head, up to 128, and streams a piece of its keys
and values once; ragged heads are cut into pieces of their own length. Weights of half-precision values are multiplied
as two halves, high and low, so that the sum is that of float32 weights: a step is bound by bytes, not by products.
float16 ends at 6·10⁻⁸, a weight that many keys may have beside a sink: its weights are lifted by a power of two.
"""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import LN2, LOG2E, arithmetic, lines, on_device, padded, pieces, products, rows_of, slots, tileable, within

LIFT = 15
"""Powers of two by which weights beside float16 values are multiplied: the greatest, 1, stays below its 65,504."""
STAGE_BYTES = 1 << 15
"""Keys and values of one step of the loop: three in flight, twice on a multiprocessor, cover the memory's latency."""
MERGE_COLUMNS = 64
MERGE_PIECES = 128
"""What a program of the merge takes at once: few steps over many pieces, as it only waits for memory."""


@triton.jit
def _attend_kernel(
    queries,
    keys,
    values,
    bias,
    lengths,
    outs,
    totals,
    tops,
    logits,
    rows,
    count,
    columns,
    value_columns,
    scale,
    stride_qh,
    stride_qr,
    stride_kh,
    stride_kn,
    stride_vh,
    stride_vn,
    stride_bh,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    RAGGED_V: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    WITH_TOPS: tl.constexpr,
    WITH_LOGITS: tl.constexpr,
    HALVES: tl.constexpr,
    LIFTED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One block of rows over one piece of the keys: output, log-sum-exp and largest logit, (splits, H_kv, R, …).

    Maximum t and sum as in `_add_keys` of `totals`, and the output likewise: o′ = o·2^(t − t′) + Σ_j 2^(l_j − t′)·v_j,
    divided by the sum at the end (FlashAttention, arXiv 2205.14135). Logits (H_kv, R, n) are stored in units of log 2.
    """
    p_s = tl.program_id(0)
    p_r = tl.program_id(1)
    p_h = tl.program_id(2).to(tl.int64)
    first = p_r * BLOCK_R
    o_r = first + tl.arange(0, BLOCK_R)
    o_v = tl.arange(0, BLOCK_V)
    m_r = o_r < rows
    length = count
    if HAS_LENGTHS:
        length = within(tl.load(lengths + p_h), count)
    per = tl.cdiv(tl.cdiv(length, BLOCK_N), tl.num_programs(0)) * BLOCK_N
    begin = p_s * per
    end = tl.minimum(begin + per, length)
    queries += p_h * stride_qh
    keys += p_h * stride_kh
    values += p_h * stride_vh
    b_q = rows_of(queries, first, rows, stride_qr, columns, BLOCK_R, CHUNK, RAGGED, UPCAST)
    b_top = tl.full([BLOCK_R], -float("inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_R], tl.float32)
    b_out = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)
    for start in range(begin, end, BLOCK_N):
        o_n = start + tl.arange(0, BLOCK_N)
        m_n = o_n < end
        b_dot = products(
            b_q, queries, first, rows, stride_qr, keys, start, end, stride_kn, columns,
            BLOCK_R, BLOCK_N, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
        )  # fmt: skip
        b_add = tl.where(m_n, 0.0, -float("inf"))
        if HAS_BIAS:
            b_add += tl.load(bias + p_h * stride_bh + o_n, mask=m_n, other=0.0).to(tl.float32) * LOG2E
        b_logit = b_dot * scale + b_add[None, :]
        if WITH_LOGITS:
            at = logits + (p_h * rows + o_r[:, None]) * count + o_n[None, :]
            tl.store(at, b_logit, mask=m_r[:, None] & m_n[None, :])
        b_new = tl.maximum(b_top, tl.max(b_logit, 1))
        # A row that has seen no key yet keeps −inf, and −inf − −inf is not a number.
        b_from = tl.where(b_new == -float("inf"), 0.0, b_new)
        b_exp = tl.exp2(b_logit - (b_from - LIFTED)[:, None])
        b_decay = tl.exp2(b_top - b_from)
        b_v = rows_of(values, start, end, stride_vn, value_columns, BLOCK_N, BLOCK_V, RAGGED_V, UPCAST)
        b_out *= b_decay[:, None]
        if HALVES:
            b_high = b_exp.to(b_v.dtype)
            b_low = (b_exp - b_high.to(tl.float32)).to(b_v.dtype)
            b_out = tl.dot(b_high, b_v, b_out)
            b_out = tl.dot(b_low, b_v, b_out)
        else:
            b_out = tl.dot(b_exp, b_v, b_out, input_precision=PRECISION)
        b_sum = b_sum * b_decay + tl.sum(b_exp, 1)
        b_top = b_new
    # Not `> 0`: a sum that is no number must be seen.
    m_some = b_sum != 0
    b_safe = tl.where(m_some, b_sum, 1.0)
    b_total = tl.where(m_some, (b_top - LIFTED + tl.log2(b_safe)) * LN2, -float("inf"))
    line = (p_s.to(tl.int64) * tl.num_programs(2) + p_h) * rows + o_r
    tl.store(totals + line, b_total, mask=m_r)
    if WITH_TOPS:
        tl.store(tops + line, b_top * LN2, mask=m_r)
    b_out = b_out / b_safe[:, None]
    m_out = m_r[:, None] & (o_v < value_columns)[None, :]
    tl.store(outs + line[:, None] * value_columns + o_v[None, :], b_out.to(outs.dtype.element_ty), mask=m_out)


@triton.jit
def _merge_kernel(
    outs,
    totals,
    out,
    total,
    rows,
    splits,
    value_columns,
    BLOCK_S: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Some columns of a row: Σ_s exp(l_s − l)·o_s over the pieces of the keys, in order, with l = log Σ_s exp(l_s)."""
    p_r = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64)
    p_v = tl.program_id(2)
    line = p_h * rows + p_r
    stride = tl.num_programs(1).to(tl.int64) * rows
    o_s = tl.arange(0, BLOCK_S)
    o_v = p_v * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < value_columns
    b_logs = tl.load(totals + line + o_s * stride, mask=o_s < splits, other=-float("inf"))
    top = tl.max(b_logs, 0)
    start = tl.where(top == -float("inf"), 0.0, top)
    mass = tl.sum(tl.exp(b_logs - start), 0)
    # Not by the maximum, which passes over what is no number: a sum that is none must be seen.
    nothing = mass == 0
    whole = start + tl.log(tl.where(nothing, 1.0, mass))
    if p_v == 0:
        tl.store(total + line, tl.where(nothing, -float("inf"), whole))
    b_out = tl.zeros([BLOCK_V], tl.float32)
    for first in range(0, splits, PART):
        o_p = first + tl.arange(0, PART)
        b_log = tl.load(totals + line + o_p * stride, mask=o_p < splits, other=-float("inf"))
        b_share = tl.exp(b_log - whole)
        at = outs + (line + o_p * stride)[:, None] * value_columns + o_v[None, :]
        b_part = tl.load(at, mask=(o_p < splits)[:, None] & m_v[None, :], other=0.0)
        b_out += tl.sum(b_share[:, None] * b_part, 0)
    tl.store(out + line * value_columns + o_v, b_out.to(out.dtype.element_ty), mask=m_v)


@dataclass(frozen=True)
class Attended:
    """Output (H_kv, R, D_v), log-sum-exp (H_kv, R), and on request the largest logit (H_kv, R) and all logits.

    Logits (H_kv, R, n) are float32 in units of log 2; those at or beyond a head's length are not written.
    """

    out: Tensor
    total: Tensor
    top: Tensor | None
    logits: Tensor | None


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    *,
    dtype: torch.dtype,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    with_top: bool = False,
    with_logits: bool = False,
) -> Attended:
    """Softmax attention of (H_kv, R, D) rows over (H_kv, n, D) keys and (H_kv, n, D_v) values, output in `dtype`.

    `lengths` (H_kv,) is how many leading keys a head has, `bias` (H_kv, n) is additive. ValueError for a scaling that
    is not positive and for rows that are not `tileable`.
    """
    if not scaling > 0:
        raise ValueError(f"scaling must be positive, not {scaling}")
    tileable(queries=queries, keys=keys, values=values)
    bias = None if bias is None else lines(bias)
    heads, rows, dim = queries.shape
    count, value_dim = values.shape[1:]
    value_width, size = padded(value_dim), _Size.of(rows, keys, values)
    blocks = triton.cdiv(rows, size.rows)
    splits = pieces(heads * blocks, triton.cdiv(count, size.keys), slots(keys, size.per_processor))
    device = keys.device
    outs = torch.empty(splits, heads, rows, value_dim, dtype=dtype if splits == 1 else torch.float32, device=device)
    totals = torch.empty(splits, heads, rows, dtype=torch.float32, device=device)
    tops = torch.empty_like(totals) if with_top else None
    logits = torch.empty(heads, rows, count, dtype=torch.float32, device=device) if with_logits else None
    options = arithmetic(keys)
    halves = keys.dtype != torch.float32 and not options["UPCAST"]
    with on_device(keys):
        _attend_kernel[(splits, blocks, heads)](
            queries,
            keys,
            values,
            bias,
            lengths,
            outs,
            totals,
            tops,
            logits,
            rows,
            count,
            dim,
            value_dim,
            scaling * LOG2E.value,
            queries.stride(0),
            queries.stride(1),
            keys.stride(0),
            keys.stride(1),
            values.stride(0),
            values.stride(1),
            0 if bias is None else bias.stride(0),
            BLOCK_R=size.rows,
            BLOCK_N=size.keys,
            BLOCK_V=value_width,
            RAGGED_V=value_width != value_dim,
            HAS_BIAS=bias is not None,
            HAS_LENGTHS=lengths is not None,
            WITH_TOPS=with_top,
            WITH_LOGITS=with_logits,
            HALVES=halves,
            LIFTED=LIFT if halves and keys.dtype == torch.float16 else 0,
            num_warps=size.warps,
            num_stages=size.stages,
            **options,
        )
        out, total = outs[0], totals[0]
        if splits > 1:
            out = torch.empty(heads, rows, value_dim, dtype=dtype, device=device)
            total = torch.empty(heads, rows, dtype=torch.float32, device=device)
            _merge_kernel[(rows, heads, max(1, triton.cdiv(value_dim, MERGE_COLUMNS)))](
                outs,
                totals,
                out,
                total,
                rows,
                splits,
                value_dim,
                BLOCK_S=triton.next_power_of_2(splits),
                PART=min(MERGE_PIECES, triton.next_power_of_2(splits)),
                BLOCK_V=MERGE_COLUMNS,
                num_warps=4,
            )
    return Attended(out, total, None if tops is None else tops.amax(0), logits)


@dataclass(frozen=True)
class _Size:
    """Rows and keys of a program's tiles, its warps and stages, and how many run on a multiprocessor."""

    rows: int
    keys: int
    warps: int
    stages: int
    per_processor: int

    @classmethod
    def of(cls, rows: int, keys: Tensor, values: Tensor) -> _Size:
        """A decode step's few rows are bound by bytes, the many rows of a fit by products and by registers."""
        width = max(padded(keys.shape[-1]), padded(values.shape[-1]))
        fitting = STAGE_BYTES // (2 * width * keys.element_size())
        block_n, stages = (fitting, 3) if fitting >= 16 else (16, 2)
        if rows <= 32:
            return cls(padded(rows), min(128, block_n), 4, stages, 2)
        if keys.element_size() == 2 and width <= 128:
            return cls(128, 64, 8, 2, 1)
        return cls(64 if width <= 256 else 32, min(64, block_n), 8, stages, 1)
