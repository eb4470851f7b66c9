"""Attention of a chunk over one branch's cache: the operation the replay engine runs per layer and branch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from . import reference


def chunk_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """`reference.chunk_attention` on the fused kernel: query heads of a KV head are folded into its rows.

    Folding gives grouped-query attention without repeating keys and values, on any backend. A `bias` (H_kv, n) makes
    the mask one per KV head, (H_kv, G·L, n) in the queries' dtype, the only one every backend takes.
    """
    heads, length, dim = queries.shape
    kv_heads = keys.shape[0]
    folded = reference.group_rows(queries, kv_heads).unsqueeze(0)
    wide_mask = None if mask is None else mask[None, None]
    if bias is not None:
        added = bias.to(queries.dtype)[None, :, None, :]
        wide_mask = added.expand(-1, -1, folded.shape[2], -1) if wide_mask is None else wide_mask + added
    out = scaled_dot_product_attention(
        folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=wide_mask, scale=scaling
    )
    return out.view(heads, length, dim)


def causal_mask(length: int, rows: int, group: int, like: Tensor) -> Tensor | None:
    """Additive (G·L, n) mask of L new tokens that are the last of n rows; None for a single token."""
    if length == 1:
        return None
    return tree_mask(torch.ones(length, length, dtype=torch.bool, device=like.device).tril(), rows, group, like)


def tree_mask(
    visible: Tensor, rows: int, group: int, like: Tensor, depth: Tensor | None = None, window: int | None = None
) -> Tensor:
    """Additive (G·L, n) mask: the whole cache is visible and, of the L new tokens, what `visible` (L, L) says.

    With a `window`, a token sees only keys less than `window` positions before it: the cached rows are the positions
    just before the new tokens, each of which lies `depth` (L,) beyond the first. Dtype and device are those of `like`.
    """
    length = visible.shape[0]
    cached = rows - length
    mask = torch.zeros(length, rows, dtype=like.dtype, device=like.device)
    mask[:, cached:].masked_fill_(~visible, float("-inf"))
    if window is not None:
        assert depth is not None
        places = torch.cat([torch.arange(-cached, 0, device=like.device), depth])
        mask.masked_fill_(depth[:, None] - places[None, :] >= window, float("-inf"))
    return mask.repeat(group, 1)
