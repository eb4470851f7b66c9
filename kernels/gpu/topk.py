"""`pool_topk` on the GPU: pooling, radix selection and the ascending list in one launch, a program per row of scores.

A score becomes a number of 32 bits of the same order, its rank, and a forced one the largest. Sought is the rank of the
last token that stays, digit by digit of 8 bits from the top. With m tokens to keep: count, for each of the 256 digits,
the tokens that have it; go down from the largest digit until m tokens are passed; that digit is the one sought, and m
less those with larger ones is what is still to be found among the tokens that have it, by their next digit. After four
digits the rank is known, and a fifth pass writes what lies above it, and of its equals the first. Alabi, Blanchard,
Gordon and Steinbach, "Fast k-selection algorithms for graphics processing units" (2012), call it radix select. The
passes read scores that stay in the cache of a multiprocessor; a sort would move them through memory many times.
"""

# Launch options are not among a kernel's arguments, and a value of Triton is no value of Python.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocks import on_device

DIGITS = tl.constexpr(256)
TOP = tl.constexpr(-(2**31))
BLOCK, MIN_BLOCK = 4096, 128


@triton.jit
def _no_number(b_x):
    return (b_x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) > 0x7F800000


@triton.jit
def _ranks(scores, forced, o_n, count, KERNEL: tl.constexpr, MEAN: tl.constexpr, HAS_FORCED: tl.constexpr):
    """Pooled scores as 32 bits that order as they do, and which are not numbers. A sum ranks as the mean does."""
    m_n = o_n < count
    if KERNEL == 1:
        b_score = tl.load(scores + o_n, mask=m_n, other=0.0).to(tl.float32)
        m_nan = _no_number(b_score)
    else:
        b_score = tl.full(o_n.shape, 0.0 if MEAN else -float("inf"), tl.float32)
        m_nan = o_n < 0
        for j in tl.static_range(KERNEL):
            o_w = o_n + (j - KERNEL // 2)
            m_w = (o_w >= 0) & (o_w < count)
            b_one = tl.load(scores + o_w, mask=m_w, other=0.0 if MEAN else -float("inf")).to(tl.float32)
            m_nan = m_nan | _no_number(b_one)
            b_score = b_score + b_one if MEAN else tl.maximum(b_score, b_one)
        # ∞ − ∞ in a window
        m_nan = m_nan | _no_number(b_score)
    b_score = tl.where(b_score == 0.0, 0.0, b_score)  # −0 equals 0
    b_bits = b_score.to(tl.int32, bitcast=True)
    b_rank = b_bits ^ ((b_bits >> 31) | TOP)
    m_forced = o_n < 0
    if HAS_FORCED:
        m_forced = tl.load(forced + o_n, mask=m_n, other=0) != 0
        b_rank = tl.where(m_forced, -1, b_rank)
    return b_rank.to(tl.uint32, bitcast=True), m_nan & m_n, m_forced


@triton.jit
def _topk_kernel(
    scores,
    forced,
    chosen,
    notes,
    count,
    keep,
    stride_sr,
    stride_fr,
    KERNEL: tl.constexpr,
    MEAN: tl.constexpr,
    HAS_FORCED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One row of (rows, n) scores into `chosen` (rows, keep), ascending, and `notes` (rows, 2): how many scores are no
    numbers, and how many are forced.
    """
    p_r = tl.program_id(0).to(tl.int64)
    scores += p_r * stride_sr
    forced += p_r * stride_fr
    o_digit = tl.arange(0, DIGITS)
    digits = tl.full((), 0, tl.uint32)
    room = keep
    nans, musts = 0, 0
    for level in tl.static_range(4):
        b_counts = tl.zeros([DIGITS], tl.int32)
        for start in range(0, count, BLOCK_N):
            o_n = start + tl.arange(0, BLOCK_N)
            b_rank, m_nan, m_forced = _ranks(scores, forced, o_n, count, KERNEL, MEAN, HAS_FORCED)
            m_same = o_n < count
            if level == 0:
                nans += tl.sum(m_nan.to(tl.int32), 0)
                musts += tl.sum(m_forced.to(tl.int32), 0)
            else:
                m_same = m_same & ((b_rank >> (32 - 8 * level)) == digits)
            b_digit = ((b_rank >> (24 - 8 * level)) & 255).to(tl.int32)
            b_counts += tl.histogram(b_digit, DIGITS, mask=m_same)
        # The digit of the last row that stays: the largest with enough rows from it on.
        digit = tl.sum((tl.cumsum(b_counts, 0, reverse=True) >= room).to(tl.int32), 0) - 1
        room -= tl.sum(tl.where(o_digit > digit, b_counts, 0), 0)
        digits = (digits << 8) | digit.to(tl.uint32)
    equals, stays = 0, 0
    for start in range(0, count, BLOCK_N):
        o_n = start + tl.arange(0, BLOCK_N)
        b_rank, m_nan, m_forced = _ranks(scores, forced, o_n, count, KERNEL, MEAN, HAS_FORCED)
        m_equal = (b_rank == digits) & (o_n < count)
        b_equal = m_equal.to(tl.int32)
        m_stay = ((b_rank > digits) & (o_n < count)) | (m_equal & (equals + tl.cumsum(b_equal, 0) <= room))
        b_stay = m_stay.to(tl.int32)
        tl.store(chosen + p_r * keep + stays + tl.cumsum(b_stay, 0) - 1, o_n.to(tl.int64), mask=m_stay)
        equals += tl.sum(b_equal, 0)
        stays += tl.sum(b_stay, 0)
    tl.store(notes + p_r * 2, nans)
    tl.store(notes + p_r * 2 + 1, musts)


def pool_topk(
    scores: Tensor, keep: int, forced: Tensor | None = None, *, kernel: int = 1, pooling: str = "mean"
) -> Tensor:
    """As the reference, errors too: for their sake the host waits for the device, once."""
    if keep < 0:
        raise ValueError(f"cannot keep {keep} tokens")
    if pooling not in ("mean", "max"):
        raise ValueError(f"unknown pooling {pooling!r}: mean or max")
    if kernel < 1:
        raise ValueError(f"the pooling kernel must be 1 or more, not {kernel}")
    count, keep = scores.shape[-1], min(keep, scores.shape[-1])
    chosen = torch.empty(*scores.shape[:-1], keep, dtype=torch.int64, device=scores.device)
    if scores.numel() == 0:
        return chosen
    lines = scores.reshape(-1, count)
    lines = lines if lines.stride(-1) == 1 or count == 1 else lines.contiguous()
    mask = None
    if forced is not None:
        mask = forced.expand(scores.shape).reshape(-1, count) if forced.dim() > 1 else forced.expand(lines.shape)
        mask = (mask if mask.stride(-1) == 1 or count == 1 else mask.contiguous()).view(torch.uint8)
    notes = torch.empty(lines.shape[0], 2, dtype=torch.int32, device=scores.device)
    block = min(BLOCK, max(MIN_BLOCK, triton.next_power_of_2(count)))
    with on_device(scores):
        _topk_kernel[(lines.shape[0],)](
            lines,
            lines if mask is None else mask,
            chosen,
            notes,
            count,
            keep,
            lines.stride(0),
            0 if mask is None else mask.stride(0),
            KERNEL=kernel,
            MEAN=pooling == "mean",
            HAS_FORCED=mask is not None,
            BLOCK_N=block,
            num_warps=max(1, block // 256),
        )
    nans, most = notes.amax(0).tolist()
    if nans:
        raise ValueError("scores contain NaN")
    if most > keep:
        raise ValueError(f"{most} forced tokens do not fit into {keep}")
    return chosen
