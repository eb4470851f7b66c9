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
    if mask is not None:
        mask = mask.repeat(heads // kv_heads, 1)[None, None]
    out = scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling)
    return out.view(heads, length, dim)


def causal_mask(length: int, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Additive (L, n) mask of L new tokens that are the last of n rows; None for a single token."""
    if length == 1:
        return None
    mask = torch.zeros(length, rows, dtype=dtype, device=device)
    own = torch.full((length, length), float("-inf"), dtype=dtype, device=device).triu(1)
    mask[:, rows - length :] = own
    return mask


def tree_mask(visible: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Additive (L, n) mask of L new tokens that see the whole cache and, of each other, what `visible` (L, L) says."""
    length = visible.shape[0]
    mask = torch.zeros(length, rows, dtype=dtype, device=visible.device)
    mask[:, rows - length :].masked_fill_(~visible, float("-inf"))
    return mask
