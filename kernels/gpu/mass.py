"""`attention_mass` on the GPU: two passes over the logits, which are computed twice and never kept.

The first pass is `log_totals`. In the second a program holds a block of keys and streams the query rows past it: as in
the first, it reduces within threads. Where there are too few keys to fill the device, the rows are cut and the partial
results are combined in order.
"""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import LOG2E, Tiles, arithmetic, lines, on_device, pieces, products, rows_of, slots, within
from .totals import checked, log_totals, partial_totals

__all__ = ["attention_mass", "log_totals"]

SHIFT_ROWS = 16


@triton.jit
def _shift_kernel(
    parts,
    shifts,
    rows,
    splits,
    stride_ps,
    stride_ph,
    POWER: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """What to subtract from the logits of each row, POWER times its log₂-sum-exp over the pieces of the keys.

    +inf, which makes every weight 0, for a row that saw nothing and for those that fill the last block: the second
    pass then needs no test for either.
    """
    p_r = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64)
    o_r = p_r * BLOCK_R + tl.arange(0, BLOCK_R)
    o_s = tl.arange(0, BLOCK_S)
    at = parts + p_h * stride_ph + o_s[:, None].to(tl.int64) * stride_ps + o_r[None, :]
    m_part = (o_s < splits)[:, None] & (o_r < rows)[None, :]
    b_part = tl.load(at, mask=m_part, other=-float("inf")).to(tl.float32)
    b_top = tl.max(b_part, 0)
    b_from = tl.where(b_top == -float("inf"), 0.0, b_top)
    b_sum = tl.sum(tl.exp2((b_part - b_from[None, :]) * LOG2E), 0)
    # Not by the maximum, which passes over what is no number: a sum that is none must be seen.
    m_none = b_sum == 0
    b_shift = tl.where(m_none, float("inf"), b_from * LOG2E + tl.log2(tl.where(m_none, 1.0, b_sum))) * POWER
    tl.store(shifts + p_h * tl.num_programs(0) * BLOCK_R + o_r, b_shift)


@triton.jit
def _mass_kernel(
    queries,
    keys,
    shifts,
    bias,
    limits,
    gains,
    asked_at,
    held_at,
    parts,
    rows,
    count,
    columns,
    scale,
    distance,
    splits,
    stride_qh,
    stride_qr,
    stride_kh,
    stride_kn,
    stride_bh,
    stride_gh,
    stride_ph,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    POWER: tl.constexpr,
    MAX: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMITS: tl.constexpr,
    HAS_GAINS: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Σ_i g_i·α_ij^POWER of a block of keys over one piece of the rows, or log₂ of the largest α_ij.

    Into `parts` (splits, H_kv, n). `scale` holds POWER already: a power of a weight is a multiple of its exponent.
    """
    p_n = tl.program_id(0)
    p_s = tl.program_id(1)
    p_h = tl.program_id(2).to(tl.int64)
    first = p_n * BLOCK_N
    o_n = first + tl.arange(0, BLOCK_N)
    m_n = o_n < count
    per = tl.cdiv(tl.cdiv(rows, BLOCK_R), splits) * BLOCK_R
    begin = p_s * per
    end = tl.minimum(begin + per, rows)
    queries += p_h * stride_qh
    keys += p_h * stride_kh
    shifts += p_h * tl.cdiv(rows, BLOCK_R) * BLOCK_R
    b_k = rows_of(keys, first, count, stride_kn, columns, BLOCK_N, CHUNK, RAGGED, UPCAST)
    b_bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        b_bias = tl.load(bias + p_h * stride_bh + o_n, mask=m_n, other=0.0).to(tl.float32) * (LOG2E * POWER)
    b_held = o_n
    if HAS_POSITIONS:
        b_held = tl.load(held_at + p_h * stride_ph + o_n, mask=m_n, other=0).to(tl.int64) + distance
    b_sum = tl.zeros([BLOCK_N], tl.float32)
    b_none = tl.zeros([BLOCK_N], tl.int32)
    if MAX:
        b_sum += -float("inf")
    for start in range(begin, end, BLOCK_R):
        o_r = start + tl.arange(0, BLOCK_R)
        m_r = o_r < end
        # Of whole blocks, so no mask; and before the products, under which it arrives.
        b_shift = tl.load(shifts + o_r)
        b_dot = products(
            b_k, keys, first, count, stride_kn, queries, start, end, stride_qr, columns,
            BLOCK_N, BLOCK_R, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
        )  # fmt: skip
        b_log = b_dot * scale - b_shift[None, :]
        if HAS_BIAS:
            b_log += b_bias[:, None]
        if HAS_LIMITS:
            b_limits = within(tl.load(limits + o_r, mask=m_r, other=0), count)
            b_log = tl.where(o_n[:, None] < b_limits[None, :], b_log, -float("inf"))
        if HAS_POSITIONS:
            b_asked = tl.load(asked_at + o_r, mask=m_r, other=0).to(tl.int64)
            b_log = tl.where(b_asked[None, :] >= b_held[:, None], b_log, -float("inf"))
        if MAX:
            b_sum = tl.maximum(b_sum, tl.max(b_log, 1))
            b_none = tl.maximum(b_none, tl.max((b_log != b_log).to(tl.int32), 1))  # noqa: PLR0124
        else:
            b_weight = tl.exp2(b_log)
            if HAS_GAINS:
                b_gain = tl.load(gains + p_h * stride_gh + o_r, mask=m_r, other=0.0).to(tl.float32)
                b_weight *= b_gain[None, :]
            b_sum += tl.sum(b_weight, 1)
    if MAX:
        # A maximum passes over what is no number, which must be seen.
        b_sum = tl.where(b_none != 0, float("nan"), b_sum)
    out = parts + (p_s.to(tl.int64) * tl.num_programs(2) + p_h) * count
    tl.store(out + o_n, b_sum, mask=m_n)


def attention_mass(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    *,
    reduction: str = "rms",
    limits: Tensor | None = None,
    row_weights: Tensor | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
    distance: int = 0,
    bias: Tensor | None = None,
    log_total: Tensor | None = None,
) -> Tensor:
    """`reference.attention_mass`: (H_kv, R, D) queries, (H_kv, n, D) keys → (H_kv, n) float32.

    Errors as for `log_totals`.
    """
    checked(queries, keys, scaling)
    heads, rows, dim = queries.shape
    count, tiles = keys.shape[1], Tiles.of(keys)
    if rows == 0 or count == 0:
        return torch.zeros(heads, count, dtype=torch.float32, device=keys.device)
    if log_total is None:
        totals = partial_totals(queries, keys, scaling, limits, bias)
    else:
        totals = lines(log_total).unsqueeze(0)
    bias = None if bias is None else lines(bias)
    limits = None if limits is None else lines(limits)
    gains = None if row_weights is None else lines(row_weights.expand(heads, rows))
    asked_at, held_at = (
        (None, None) if positions is None else (lines(positions[0]), lines(positions[1].expand(heads, count)))
    )
    power = 2 if reduction == "rms" else 1
    blocks = triton.cdiv(count, tiles.held)
    splits = pieces(heads * blocks, triton.cdiv(rows, tiles.streamed), slots(keys, tiles.per_processor))
    parts = torch.empty(splits, heads, count, dtype=torch.float32, device=keys.device)
    padded_rows = triton.cdiv(rows, tiles.streamed) * tiles.streamed
    shifts = torch.empty(heads, padded_rows, dtype=torch.float32, device=keys.device)
    with on_device(keys):
        _shift_kernel[(padded_rows // SHIFT_ROWS, heads)](
            totals,
            shifts,
            rows,
            len(totals),
            totals.stride(0),
            totals.stride(1),
            POWER=power,
            BLOCK_S=triton.next_power_of_2(len(totals)),
            BLOCK_R=SHIFT_ROWS,
        )
        _mass_kernel[(blocks, splits, heads)](
            queries,
            keys,
            shifts,
            bias,
            limits,
            gains,
            asked_at,
            held_at,
            parts,
            rows,
            count,
            dim,
            scaling * LOG2E.value * power,
            distance,
            splits,
            queries.stride(0),
            queries.stride(1),
            keys.stride(0),
            keys.stride(1),
            0 if bias is None else bias.stride(0),
            0 if gains is None else gains.stride(0),
            0 if held_at is None else held_at.stride(0),
            BLOCK_R=tiles.streamed,
            BLOCK_N=tiles.held,
            POWER=power,
            MAX=reduction == "max",
            HAS_BIAS=bias is not None,
            HAS_LIMITS=limits is not None,
            HAS_GAINS=gains is not None,
            HAS_POSITIONS=positions is not None,
            **arithmetic(keys),
            **tiles.launch(),
        )
    if reduction == "max":
        return parts.amax(0).exp2_()
    total = parts.sum(0)
    if reduction == "sum":
        return total
    return total.div_(rows) if reduction == "mean" else total.div_(rows).sqrt_()
