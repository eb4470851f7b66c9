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
    if not count or not rows:
        nobody = asked.new_zeros(kv_heads, count) if activity else None
        nothing = asked.new_full((heads, length), -torch.inf)
        return queries.new_zeros(heads, length, values.shape[-1]), nothing, nobody
    hidden = None if lengths is None else torch.arange(count, device=keys.device) >= lengths[:, None]
    # Narrow keys are widened block by block; wide ones are read as they are, and only their logits are made.
    made = dim if keys.dtype != asked.dtype else rows
    step = max(64, BLOCK_ENTRIES // max(1, kv_heads * made))
    if step >= count:
        out, total, weights = _attended(asked, keys, values, bias, hidden)
        read = weights.sum(1) if activity else None
    else:
        out, total, read = _merged(step, asked, keys, values, bias, hidden, activity)
    return out.view(heads, length, values.shape[-1]).to(queries.dtype), total.view(heads, length), read


def _merged(
    step: int, asked: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, hidden: Tensor | None, activity: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `_attended`, block by block of `step` keys, and instead of the weights their sums over the rows (H_kv, n)."""
    outs: list[Tensor] = []
    logs: list[Tensor] = []
    blocks: list[Tensor] = []
    for begin in range(0, keys.shape[1], step):
        some = slice(begin, begin + step)
        more, covered = (None if x is None else x[:, some] for x in (bias, hidden))
        out, log, weights = _attended(asked, keys[:, some], values[:, some], more, covered)
        outs.append(out)
        logs.append(log.squeeze(-1))
        if activity:
            blocks.append(weights)
    out, total = reference.merge_partials(outs, logs)
    if not activity:
        return out, total, None
    shares = (torch.stack(logs) - total).exp_().masked_fill_(total == -torch.inf, 0.0).unsqueeze(2)
    read = [torch.bmm(share, weights).squeeze(1) for share, weights in zip(shares, blocks, strict=True)]
    return out, total, torch.cat(read, -1)


def _attended(
    asked: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, hidden: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Output (H_kv, R, D_v), log-sum-exp (H_kv, R, 1) and weights (H_kv, R, n) of one block.

    Few calls, as each costs microseconds and, where threads share its work, a wait for the slowest of them.
    """
    logits, seen = torch.bmm(asked, wide(keys).mT), wide(values)
    if bias is not None:
        logits += wide(bias)[:, None, :]
    if hidden is not None:
        logits.masked_fill_(hidden[:, None, :], -torch.inf)
        # A hidden row may hold anything, NaN included: 0 · NaN must not reach the output.
        seen = seen.masked_fill(hidden[:, :, None], 0.0)
    top = logits.amax(-1, keepdim=True)
    weights = logits.softmax(-1)
    # The largest weight is 1 / Σ_j exp(l_j − top).
    log_total = top - weights.amax(-1, keepdim=True).log_()
    if bias is not None or hidden is not None:
        nothing = top == -torch.inf
        weights.masked_fill_(nothing, 0.0)
        log_total.masked_fill_(nothing, -torch.inf)
    return torch.bmm(weights, seen), log_total, weights


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
