"""Attention of a chunk over one branch's cache: the operation the replay engine runs per layer and branch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from . import reference


def chunk_attention(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """`reference.chunk_attention` on the fused kernel: query heads of a KV head are folded into its rows.

    Folding gives grouped-query attention without repeating keys and values, on any backend.
    """
    heads, length, dim = queries.shape
    kv_heads = keys.shape[0]
    folded = reference.group_rows(queries, kv_heads).unsqueeze(0)
    wide_mask = None if mask is None else mask[None, None]
    out = scaled_dot_product_attention(
        folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=wide_mask, scale=scaling
    )
    return out.view(heads, length, dim)


def causal_mask(length: int, rows: int, group: int, like: Tensor) -> Tensor | None:
    """Additive (G·L, n) mask of L new tokens that are the last of n rows; None for a single token."""
    if length == 1:
        return None
    return tree_mask(torch.ones(length, length, dtype=torch.bool, device=like.device).tril(), rows, group, like)


def tree_mask(visible: Tensor, rows: int, group: int, like: Tensor) -> Tensor:
    """Additive (G·L, n) mask: the whole cache is visible and, of the L new tokens, what `visible` (L, L) says.

    Dtype and device are those of `like`.
    """
    length = visible.shape[0]
    mask = torch.zeros(length, rows, dtype=like.dtype, device=like.device)
    mask[:, rows - length :].masked_fill_(~visible, float("-inf"))
    return mask.repeat(group, 1)
