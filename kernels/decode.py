"""One to a few queries against a cache: attention of a decode step, and on request who was read.

The query heads of a KV head are its rows, so keys and values are read once, never repeated. Keys are taken in blocks
whose partial results merge by their log-sum-exps, so that narrow ones are widened a block at a time. The reference is
`reference.decode_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .checks import integers, real, shaped, together
from .dispatch import Impl, choose
from .reference import group_rows, wide

BLOCK_ENTRIES = 1 << 20
"""Entries made of a block of keys, 4 MiB in float32: widened keys, or logits where keys are wide already."""


def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    activity: bool = False,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference.decode_attention`: out (H, L, D_v), log_total (H, L), and activity (H_kv, n) or None.

    A batch folds into the heads: row b of B is heads b·H … and KV heads b·H_kv …, its length in all of `lengths`.
    """
    _check(queries, keys, values, lengths, bias)
    form = choose(impl, queries, keys, values)
    options = {"lengths": lengths, "bias": bias, "activity": activity}
    if form == "reference":
        return reference.decode_attention(queries, keys, values, scaling, **options)
    if form == "triton":
        from .gpu.decode import decode_attention as on_gpu

        return on_gpu(queries, keys, values, scaling, **options)
    return _blocked(queries, keys, values, scaling, lengths, bias, activity)


def _blocked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    lengths: Tensor | None,
    bias: Tensor | None,
    activity: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    heads, length = queries.shape[:2]
    kv_heads, count, dim = keys.shape
    asked = wide(group_rows(queries, kv_heads)) * scaling
    rows = asked.shape[1]
    top = asked.new_full((kv_heads, rows, 1), torch.finfo(asked.dtype).min)
    total, out = torch.zeros_like(top), asked.new_zeros(kv_heads, rows, values.shape[-1])
    parts: list[tuple[Tensor, Tensor]] = []
    # Narrow keys are widened block by block; wide ones are read as they are, and only their logits are made.
    made = dim if keys.dtype != asked.dtype else rows
    step = max(64, BLOCK_ENTRIES // max(1, kv_heads * made))
    columns = torch.arange(count, device=keys.device)
    for begin in range(0, count, step):
        some = slice(begin, begin + step)
        block = torch.bmm(asked, wide(keys[:, some]).transpose(1, 2))
        seen = wide(values[:, some])
        if bias is not None:
            block += wide(bias)[:, None, some]
        if lengths is not None:
            hidden = columns[some] >= lengths[:, None]
            block.masked_fill_(hidden[:, None, :], -torch.inf)
            # A hidden row may hold anything, NaN included: 0 · NaN must not reach the output.
            seen = seen.masked_fill(hidden[:, :, None], 0.0)
        new_top = torch.maximum(top, block.amax(-1, keepdim=True))
        block.sub_(new_top).exp_()
        fade = (top - new_top).exp_()
        total = total * fade + block.sum(-1, keepdim=True)
        out = torch.baddbmm(out * fade, block, seen)
        top = new_top
        if activity:
            parts.append((block, new_top))
    # A row without keys has total 0: its output is 0 and its log-sum-exp −inf.
    out = (out / total.masked_fill(total == 0, 1.0)).reshape(heads, length, values.shape[-1]).to(queries.dtype)
    log_total = (total.log() + top).reshape(heads, length)
    if not activity:
        return out, log_total, None
    gain = 1 / total.masked_fill(total == 0, torch.inf)
    read = [((at - top).exp_() * gain).transpose(1, 2) @ block for block, at in parts]
    return out, log_total, torch.cat(read, dim=-1).squeeze(1) if parts else asked.new_zeros(kv_heads, 0)


def _check(queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor | None, bias: Tensor | None) -> None:
    kv_heads, count = keys.shape[:2]
    if queries.dim() != 3 or queries.shape[0] % max(1, kv_heads):
        raise ValueError(f"queries must be (a multiple of {kv_heads} heads, L, D), not {tuple(queries.shape)}")
    shaped("keys", keys, None, None, queries.shape[-1])
    shaped("values", values, kv_heads, count, None)
    real(queries=queries, keys=keys, values=values)
    if lengths is not None:
        shaped("lengths", lengths, kv_heads)
        integers("lengths", lengths)
    if bias is not None:
        shaped("bias", bias, kv_heads, count)
    together(queries=queries, keys=keys, values=values, lengths=lengths, bias=bias)
