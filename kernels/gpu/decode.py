"""`decode_attention` on the GPU: the rows of a KV head are its query heads, so keys and values are read once."""

# Launch options are not among a kernel's arguments, and plain values become its constants.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference import group_rows
from .attend import attend
from .blocks import LOG2E, lines, on_device, within

BLOCK_N = 256
BLOCK_R = 8


@triton.jit
def _activity_kernel(
    logits,
    totals,
    lengths,
    activity,
    rows,
    count,
    HAS_LENGTHS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Σ over the rows of a KV head of exp(logit − total), for a block of keys; 0 beyond the head's length."""
    p_n = tl.program_id(0)
    p_h = tl.program_id(1).to(tl.int64)
    o_n = p_n * BLOCK_N + tl.arange(0, BLOCK_N)
    length = count
    if HAS_LENGTHS:
        length = within(tl.load(lengths + p_h), count)
    m_n = o_n < length
    b_sum = tl.zeros([BLOCK_N], tl.float32)
    for first in range(0, rows, BLOCK_R):
        o_r = first + tl.arange(0, BLOCK_R)
        m_r = o_r < rows
        b_total = tl.load(totals + p_h * rows + o_r, mask=m_r, other=float("inf"))
        # A row that saw nothing counts nothing.
        b_total = tl.where(b_total == -float("inf"), float("inf"), b_total) * LOG2E
        at = logits + (p_h * rows + o_r)[:, None] * count + o_n[None, :]
        b_logit = tl.load(at, mask=m_r[:, None] & m_n[None, :], other=-float("inf"))
        b_sum += tl.sum(tl.exp2(b_logit - b_total[:, None]), 0)
    tl.store(activity + p_h * count + o_n, b_sum, mask=o_n < count)


def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    activity: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference.decode_attention`: output, log-sum-exp and activity, the latter two float32.

    The activity needs the total over all pieces of the keys, so it is a second step over the logits, kept on the way:
    8 bytes per row and key, written and read. Computing them again would read the keys again, at 2·D bytes each in half
    precision: more, up to D/4 rows. Errors as for `attend`.
    """
    heads, length = queries.shape[:2]
    kv_heads, count = keys.shape[:2]
    rows = group_rows(queries, kv_heads)
    lengths = None if lengths is None else lines(lengths)
    found = attend(rows, keys, values, scaling, dtype=queries.dtype, lengths=lengths, bias=bias, with_logits=activity)
    out, total = found.out.view(heads, length, values.shape[-1]), found.total.view(heads, length)
    if found.logits is None:
        return out, total, None
    read = torch.empty(kv_heads, count, dtype=torch.float32, device=keys.device)
    with on_device(keys):
        _activity_kernel[(triton.cdiv(count, BLOCK_N), kv_heads)](
            found.logits,
            found.total,
            lengths,
            read,
            rows.shape[1],
            count,
            HAS_LENGTHS=lengths is not None,
            BLOCK_R=BLOCK_R,
            BLOCK_N=BLOCK_N,
        )
    return out, total, read
