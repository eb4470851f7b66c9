"""The meaning of every operation, in plain torch. Faster paths change no signature and are tested against this.

Shapes: H_kv key-value heads, G query heads per KV head, L query tokens, R = G·L query rows, n keys, D head
dimension. Everything is computed in float32, or in float64 when the inputs are float64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """float64 stays; everything narrower is computed in float32 (compaction.md 7.1)."""
    return x if x.dtype == torch.float64 else x.float()


def group_rows(queries: Tensor, kv_heads: int) -> Tensor:
    """(H_kv·G, L, D) query heads → (H_kv, G·L, D): the rows that share a KV head, concatenated, head-major."""
    heads, length, dim = queries.shape
    return queries.reshape(kv_heads, heads // kv_heads * length, dim)


def attention_weights(queries: Tensor, keys: Tensor, scaling: float, limits: Tensor | None = None) -> Tensor:
    """softmax_j(q_i·k_j·scaling): (H_kv, R, D), (H_kv, n, D) → (H_kv, R, n).

    `limits` (R,) is how many leading keys each row may see; None sees all.
    """
    logits = wide(queries) @ wide(keys).transpose(1, 2) * scaling
    if limits is not None:
        hidden = torch.arange(keys.shape[1], device=keys.device)[None, :] >= limits[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    return logits.softmax(-1)


def attention_mass(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    *,
    reduction: str = "rms",
    limits: Tensor | None = None,
    row_weights: Tensor | None = None,
    counted: Tensor | None = None,
) -> Tensor:
    """How much each key is read: (H_kv, R, D) queries, (H_kv, n, D) keys → (H_kv, n).

    α = `attention_weights`; then over rows i: rms = sqrt(mean α²) (arXiv 2608.00902, eq. 3), mean, max, or
    sum of `row_weights` (R,) · α. `counted` (H_kv or 1, R, n) removes weights after the softmax.
    """
    weights = attention_weights(queries, keys, scaling, limits)
    if counted is not None:
        weights = weights * counted
    if reduction == "rms":
        return weights.square().mean(1).sqrt()
    if reduction == "mean":
        return weights.mean(1)
    if reduction == "max":
        return weights.amax(1)
    if reduction == "sum":
        scale = torch.ones(queries.shape[1], device=keys.device) if row_weights is None else row_weights
        return torch.einsum("hrn,r->hn", weights, scale.to(weights.dtype))
    raise ValueError(f"unknown reduction {reduction!r}: rms, mean, max or sum")


def pool_topk(scores: Tensor, keep: int, forced: Tensor | None = None) -> Tensor:
    """The `keep` best of each row, forced ones first: (…, n) scores, (n,) or (…, n) bool → (…, keep) ascending.

    Ties go to the lower index. All forced tokens are kept: `keep` below their number is an error.
    """
    if forced is not None:
        most = int(forced.expand_as(scores).sum(-1).max()) if scores.numel() else 0
        if most > keep:
            raise ValueError(f"{most} forced tokens do not fit into {keep}")
        scores = scores.masked_fill(forced, float("inf"))
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :keep].sort(dim=-1).values


def compact_kv(keys: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Gather rows per head: (H_kv, n, D) keys and values, (H_kv, m) index → two new (H_kv, m, D) tensors."""
    rows = index.unsqueeze(-1).expand(-1, -1, keys.shape[-1])
    return keys.gather(1, rows), values.gather(1, rows)


def chunk_attention(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """Attention of L new tokens over n cached ones (their own rows last), GQA without repeating KV.

    (H, L, D) queries, (H_kv, n, D) keys and values → (H, L, D). `mask` is additive, (G·L, n) in the row order of
    `group_rows`, or None where every row sees every key.
    """
    heads, length, dim = queries.shape
    logits = wide(group_rows(queries, keys.shape[0])) @ wide(keys).transpose(1, 2) * scaling
    if mask is not None:
        logits = logits + wide(mask)
    out = logits.softmax(-1) @ wide(values)
    return out.reshape(heads, length, dim).to(queries.dtype)
