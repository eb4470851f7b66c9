"""How much each key is read: scores for te, activity for attention and hybrid, log-sum-exps for both.

The (rows × keys) matrix of weights exists one block of rows at a time: extra memory is O(block · n). The references are
`reference.attention_mass`, `log_totals` and `attention_use`, and say what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import reference
from .checks import integers, real, shaped, spreads, together
from .dispatch import Impl, choose
from .reference import wide
from .reference_attention import REDUCTIONS

BLOCK_ENTRIES = 1 << 20
"""Weights of a block of rows, so that the passes over it stay in the cache of a core (4 MiB in float32)."""
HEADS_AT_ONCE = 4096
"""Up to this many keys the heads of a block are computed together: single ones would not be worth a call."""


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
    impl: Impl = "auto",
) -> Tensor:
    """`reference.attention_mass`: (H_kv, R, D) queries, (H_kv, n, D) keys → (H_kv, n) float32 (float64 for float64)."""
    _check(queries, keys, limits, bias, log_total)
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}: {', '.join(REDUCTIONS)}")
    if row_weights is not None:
        if reduction != "sum":
            raise ValueError(f"row_weights belong to the reduction sum, not {reduction}")
        together(queries=queries, row_weights=row_weights)
        spreads("row_weights", row_weights, *queries.shape[:2])
    if positions is not None:
        shaped("query positions", positions[0], queries.shape[1])
        spreads("key positions", positions[1], *keys.shape[:2])
        integers("query positions", positions[0])
        integers("key positions", positions[1])
        together(queries=queries, query_positions=positions[0], key_positions=positions[1])
    options = {
        "reduction": reduction,
        "limits": limits,
        "row_weights": row_weights,
        "positions": positions,
        "distance": distance,
        "bias": bias,
        "log_total": log_total,
    }
    form = choose(impl, queries, keys)
    if form == "reference":
        return reference.attention_mass(queries, keys, scaling, **options)
    if form == "triton":
        from .gpu.mass import attention_mass as on_gpu

        return on_gpu(queries, keys, scaling, **options)
    work = _Blocks(queries, keys, scaling, limits, bias, log_total, positions, distance)
    return work.reduced(reduction, row_weights)


def log_totals(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    *,
    limits: Tensor | None = None,
    bias: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """`reference.log_totals`: log Σ_j exp(q_i·k_j·scaling + bias_j) over the visible keys, (H_kv, R) float32."""
    _check(queries, keys, limits, bias, None)
    form = choose(impl, queries, keys)
    if form == "reference":
        return reference.log_totals(queries, keys, scaling, limits=limits, bias=bias)
    if form == "triton":
        from .gpu.mass import log_totals as on_gpu

        return on_gpu(queries, keys, scaling, limits=limits, bias=bias)
    work = _Blocks(queries, keys, scaling, limits, bias)
    out = work.keys.new_empty(queries.shape[:2])
    for heads, rows, block in work.logits():
        out[heads, rows] = block.logsumexp(-1)
    return out


def attention_use(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    *,
    limits: Tensor,
    positions: Tensor,
    first: int = 0,
    bias: Tensor | None = None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor]:
    """`reference.attention_use`: (H, L, D), (H_kv, n, D) → activity and last use, both (H_kv, n − first)."""
    heads, length, dim = queries.shape
    kv_heads = keys.shape[0]
    shaped("limits", limits, length)
    shaped("positions", positions, length)
    _check(queries.reshape(kv_heads, -1, dim), keys, None, bias, None)
    if choose(impl, queries, keys) == "reference":
        return reference.attention_use(
            queries, keys, scaling, limits=limits, positions=positions, first=first, bias=bias
        )
    group, count = heads // kv_heads, keys.shape[1]
    grouped, wide_keys = queries.view(kv_heads, group, length, dim), wide(keys)
    activity = wide_keys.new_zeros(kv_heads, count - first)
    last = torch.full_like(activity, -1.0)
    step = max(1, BLOCK_ENTRIES // max(1, heads * count))
    for begin in range(0, length, step):
        some = slice(begin, begin + step)
        rows, seen, places = grouped[:, :, some].flatten(1, 2), limits[some], positions[some]
        work = _Blocks(rows, wide_keys, scaling, seen.repeat(group), bias)
        weights = wide_keys.new_empty(kv_heads, rows.shape[1], count)
        for at, part, block in work.weights():
            weights[at, part] = block
        mean = weights.view(kv_heads, group, -1, count)[..., first:].mean(1)
        activity += mean.sum(1)
        used = mean.mul_(seen[:, None]) >= 1
        last = torch.maximum(last, torch.where(used, places[:, None].to(last.dtype), -1.0).amax(1))
    return activity, last


@dataclass
class _Blocks:
    """The weights of R rows over n keys, some rows at a time. Arguments as in `attention_mass`."""

    queries: Tensor
    keys: Tensor
    scaling: float
    limits: Tensor | None
    bias: Tensor | None
    log_total: Tensor | None = None
    positions: tuple[Tensor, Tensor] | None = None
    distance: int = 0

    def __post_init__(self) -> None:
        self.keys = wide(self.keys)
        self._columns = torch.arange(self.keys.shape[1], device=self.keys.device)

    def logits(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """(heads, rows, logits (h, r, n)), block after block in the same memory, which may be changed."""
        heads, count = self.queries.shape[:2]
        keys = self.keys.shape[1]
        some_heads = heads if keys <= HEADS_AT_ONCE else 1
        some_rows = min(count, max(16, BLOCK_ENTRIES // max(1, some_heads * keys)))
        turned = self.keys.transpose(1, 2)
        room = self.keys.new_empty(some_heads * some_rows * keys)
        for h in range(0, heads, max(1, some_heads)):
            at = slice(h, min(h + some_heads, heads))
            for r in range(0, count, max(1, some_rows)):
                rows = slice(r, min(r + some_rows, count))
                asked = wide(self.queries[at, rows]) * self.scaling
                block = room[: asked.shape[0] * asked.shape[1] * keys].view(*asked.shape[:2], keys)
                torch.bmm(asked, turned[at], out=block)
                if self.bias is not None:
                    block += wide(self.bias)[at, None, :]
                self._hide(block, rows)
                yield at, rows, block

    def exps(self) -> Iterator[tuple[slice, slice, Tensor, Tensor | None]]:
        """(heads, rows, e, s): the weights are e·s, s (h, r) a factor per row or None for 1; hidden pairs are 0."""
        for at, rows, block in self.logits():
            scale = None
            if self.log_total is not None:
                total = wide(self.log_total)[at, rows, None]
                # A row whose total is −inf saw nothing.
                block.sub_(total.masked_fill(total == -torch.inf, torch.inf)).exp_()
            elif block.shape[-1]:
                top = block.amax(-1, keepdim=True)
                block.sub_(top.clamp_min(torch.finfo(block.dtype).min)).exp_()
                scale = 1 / block.sum(-1).masked_fill(top.squeeze(-1) == -torch.inf, torch.inf)
            if self.positions is not None:
                asked, held = self.positions[0][rows], self.positions[1].expand(self.keys.shape[:2])[at]
                block.masked_fill_(asked[:, None] - held[:, None, :] < self.distance, 0.0)
            yield at, rows, block, scale

    def weights(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """(heads, rows, weights (h, r, n))."""
        for at, rows, block, scale in self.exps():
            yield at, rows, block if scale is None else block.mul_(scale.unsqueeze(-1))

    def reduced(self, reduction: str, row_weights: Tensor | None) -> Tensor:
        """(H_kv, n): the weights reduced over the rows."""
        heads, count = self.queries.shape[:2]
        out = self.keys.new_zeros(heads, self.keys.shape[1])
        if reduction == "max":
            for at, _, block in self.weights():
                torch.maximum(out[at], block.amax(1), out=out[at])
            return out
        gains = None if row_weights is None else row_weights.to(out).expand(heads, count)
        for at, rows, block, scale in self.exps():
            gain = block.new_ones(block.shape[:2]) if scale is None else scale
            if reduction == "rms":
                block.square_()
                gain = gain.square()
            elif gains is not None:
                gain = gain * gains[at, rows]
            # Not a matrix product, which may add up the last columns in another order: equal keys get equal bits.
            out[at] += block.mul_(gain.unsqueeze(-1)).sum(1)
        if reduction == "sum" or count == 0:
            return out
        return out.div_(count) if reduction == "mean" else out.div_(count).sqrt_()

    def _hide(self, block: Tensor, rows: slice) -> None:
        """−inf for the keys that a row may not see; those that every row of the block sees are left alone."""
        if self.limits is None:
            return
        seen = self.limits[rows]
        begin = max(0, min(int(seen.min()), block.shape[-1]))
        if begin < block.shape[-1]:
            block[..., begin:].masked_fill_(self._columns[None, begin:] >= seen[:, None], -torch.inf)


def _check(queries: Tensor, keys: Tensor, limits: Tensor | None, bias: Tensor | None, log_total: Tensor | None) -> None:
    heads, _, dim = queries.shape
    shaped("keys", keys, heads, None, dim)
    real(queries=queries, keys=keys)
    if limits is not None:
        shaped("limits", limits, queries.shape[1])
        integers("limits", limits)
    if bias is not None:
        shaped("bias", bias, heads, keys.shape[1])
    if log_total is not None:
        shaped("log_total", log_total, *queries.shape[:2])
    together(queries=queries, keys=keys, limits=limits, bias=bias, log_total=log_total)
