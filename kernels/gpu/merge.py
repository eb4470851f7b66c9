"""Merging on the GPU: means of groups in one pass over the rows, and nearest rows without a matrix of distances."""

# Launch options are not among a kernel's arguments, and a value of Triton is no value of Python.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import Tiles, arithmetic, lines, on_device, padded, products, rows_of

TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
GROUP_ROWS = 8
"""Members read at once: a group has few, five on average where a fifth of the rows is kept."""


@triton.jit
def _weight(weights, o_row, m_row, HAS: tl.constexpr):
    if HAS:
        b_weight = tl.load(weights + o_row, mask=m_row, other=0.0).to(tl.float32)
    else:
        b_weight = m_row.to(tl.float32)
    return b_weight


@triton.jit
def _mean(
    x,
    out,
    weights,
    counts,
    order,
    start,
    end,
    total,
    stride_n,
    DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
):
    """The mean of one group by its weights, or by its counts, of sum `total`, where there are none or they vanish."""
    whole = total
    if HAS_WEIGHTS:
        b_sums = tl.zeros([BLOCK_R], tl.float32)
        for first in range(start, end, BLOCK_R):
            o_r = first + tl.arange(0, BLOCK_R)
            b_row = tl.load(order + o_r, mask=o_r < end, other=0)
            b_sums += _weight(weights, b_row, o_r < end, True)
        whole = tl.sum(b_sums, 0)
    vanished = whole < TINY
    whole = tl.maximum(tl.where(vanished, total, whole), TINY)
    o_d = tl.arange(0, BLOCK_D)
    b_mean = tl.zeros([BLOCK_D], tl.float32)
    for first in range(start, end, BLOCK_R):
        o_r = first + tl.arange(0, BLOCK_R)
        m_r = o_r < end
        b_row = tl.load(order + o_r, mask=m_r, other=0)
        b_weight = _weight(counts, b_row, m_r, HAS_COUNTS)
        if HAS_WEIGHTS:
            b_weight = tl.where(vanished, b_weight, _weight(weights, b_row, m_r, True))
        b_share = tl.div_rn(b_weight, tl.zeros([BLOCK_R], tl.float32) + whole)
        b_x = tl.load(x + b_row[:, None] * stride_n + o_d, mask=m_r[:, None] & (o_d < DIM), other=0.0).to(tl.float32)
        b_mean += tl.sum(b_x * b_share[:, None], 0)
    tl.store(out + o_d, b_mean, mask=o_d < DIM)


@triton.jit
def _merge_kernel(
    keys,
    values,
    new_keys,
    new_values,
    new_counts,
    order,
    starts,
    key_weights,
    value_weights,
    counts,
    clusters,
    count,
    stride_kh,
    stride_kn,
    stride_vh,
    stride_vn,
    stride_ah,
    stride_bh,
    stride_ch,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_KEY_WEIGHTS: tl.constexpr,
    HAS_VALUE_WEIGHTS: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
):
    """One group of one head: the means of its rows into (H, m, D) keys and values, and Σ counts into (H, m).

    Rows `order`[`starts`[group]…`starts`[group + 1]] are its members, read as they lie and added in that order.
    """
    p_m = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + p_h * (clusters + 1) + p_m).to(tl.int32)
    end = tl.load(starts + p_h * (clusters + 1) + p_m + 1).to(tl.int32)
    order += p_h * count
    counts += p_h * stride_ch
    b_total = tl.zeros([BLOCK_R], tl.float32)
    for first in range(start, end, BLOCK_R):
        o_r = first + tl.arange(0, BLOCK_R)
        b_row = tl.load(order + o_r, mask=o_r < end, other=0)
        b_total += _weight(counts, b_row, o_r < end, HAS_COUNTS)
    total = tl.sum(b_total, 0)
    new = p_h * clusters + p_m
    tl.store(new_counts + new, total)
    _mean(
        keys + p_h * stride_kh, new_keys + new * KEY_DIM, key_weights + p_h * stride_ah, counts, order, start, end,
        total, stride_kn, KEY_DIM, BLOCK_R, BLOCK_D, HAS_KEY_WEIGHTS, HAS_COUNTS,
    )  # fmt: skip
    _mean(
        values + p_h * stride_vh, new_values + new * VALUE_DIM, value_weights + p_h * stride_bh, counts, order, start,
        end, total, stride_vn, VALUE_DIM, BLOCK_R, BLOCK_D, HAS_VALUE_WEIGHTS, HAS_COUNTS,
    )  # fmt: skip


@triton.jit
def _nearest_kernel(
    points,
    others,
    halves,
    least,
    labels,
    rows,
    count,
    stride_ph,
    stride_pn,
    stride_oh,
    stride_om,
    DIM,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    RAGGED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLIER: tl.constexpr,
):
    """min and argmin over the others of ‖o‖²/2 − x·o for a block of rows; EARLIER: over those of lower index only.

    It is the squared distance ‖x‖² + ‖o‖² − 2·x·o less what all others share, halved; `halves` (H, n) are the ‖o‖²/2.
    Equals go to the first: `tl.min` takes the first of a tile, and a later tile must be strictly nearer.
    """
    p_r = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64)
    first = p_r * BLOCK_R
    o_r = first + tl.arange(0, BLOCK_R)
    points += p_h * stride_ph
    others += p_h * stride_oh
    b_points = rows_of(points, first, rows, stride_pn, DIM, BLOCK_R, CHUNK, RAGGED, UPCAST)
    b_least = tl.full([BLOCK_R], float("inf"), tl.float32)
    b_label = tl.zeros([BLOCK_R], tl.int32)
    end = count
    if EARLIER:
        end = tl.minimum(first + BLOCK_R, count)
    for start in range(0, end, BLOCK_M):
        o_m = start + tl.arange(0, BLOCK_M)
        b_dot = products(
            b_points, points, first, rows, stride_pn, others, start, count, stride_om, DIM,
            BLOCK_R, BLOCK_M, BLOCK_D, CHUNK, RAGGED, UPCAST, PRECISION,
        )  # fmt: skip
        b_far = tl.load(halves + p_h * count + o_m, mask=o_m < count, other=float("inf"))[None, :] - b_dot
        if EARLIER:
            b_far = tl.where(o_m[None, :] < o_r[:, None], b_far, float("inf"))
        b_near, b_at = tl.min(b_far, 1, return_indices=True)
        m_closer = b_near < b_least
        b_label = tl.where(m_closer, start + b_at, b_label)
        b_least = tl.where(m_closer, b_near, b_least)
    if EARLIER:
        tl.store(least + p_h * rows + o_r, b_least, mask=o_r < rows)
    else:
        tl.store(labels + p_h * rows + o_r, b_label.to(tl.int64), mask=o_r < rows)


def merge_kv(
    keys: Tensor,
    values: Tensor,
    order: Tensor,
    starts: Tensor,
    *,
    key_weights: Tensor | None = None,
    value_weights: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As the public form, for rows (H, n) in the order of their groups and where these begin, (H, m + 1)."""
    (heads, count), clusters = order.shape, starts.shape[1] - 1
    keys, values = lines(keys), lines(values)
    dims = keys.shape[-1], values.shape[-1]
    new = [torch.empty(heads, clusters, dim, dtype=keys.dtype, device=keys.device) for dim in dims]
    summed = torch.empty(heads, clusters, dtype=torch.float32, device=keys.device)
    weights = [None if x is None else lines(x) for x in (key_weights, value_weights, counts)]
    width = padded(max(dims))
    if summed.numel():
        with on_device(keys):
            _merge_kernel[(clusters, heads)](
                keys,
                values,
                *new,
                summed,
                order.contiguous(),
                starts.contiguous(),
                *(keys if x is None else x for x in weights),
                clusters,
                count,
                *keys.stride()[:2],
                *values.stride()[:2],
                *(0 if x is None else x.stride(0) for x in weights),
                KEY_DIM=dims[0],
                VALUE_DIM=dims[1],
                BLOCK_R=GROUP_ROWS,
                BLOCK_D=width,
                HAS_KEY_WEIGHTS=weights[0] is not None,
                HAS_VALUE_WEIGHTS=weights[1] is not None,
                HAS_COUNTS=weights[2] is not None,
                num_warps=max(1, width // 128),
            )
    return new[0], new[1], summed


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest of (H, m, D) centres to each of (H, b, D) points, the first of equals: (H, b)."""
    labels = torch.empty(points.shape[:2], dtype=torch.int64, device=points.device)
    _launch(points, centres, labels, labels, earlier=False)
    return labels


def nearest_earlier(points: Tensor) -> Tensor:
    """min over j < i of ‖x_j‖²/2 − x_i·x_j for (H, n, D) points: (H, n), +inf for the first."""
    least = torch.empty(points.shape[:2], dtype=torch.float32, device=points.device)
    _launch(points, points, least, least, earlier=True)
    return least


def _launch(points: Tensor, others: Tensor, least: Tensor, labels: Tensor, *, earlier: bool) -> None:
    points, others = lines(points), lines(others)
    heads, rows, dim = points.shape
    tiles = Tiles.of(points)
    halves = (others.square().sum(-1) / 2).contiguous()
    if not least.numel():
        return
    with on_device(points):
        _nearest_kernel[(triton.cdiv(rows, tiles.held), heads)](
            points,
            others,
            halves,
            least,
            labels,
            rows,
            others.shape[1],
            *points.stride()[:2],
            *others.stride()[:2],
            dim,
            BLOCK_R=tiles.held,
            BLOCK_M=tiles.streamed,
            EARLIER=earlier,
            **arithmetic(points),
            **tiles.launch(),
        )
