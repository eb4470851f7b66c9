"""Attention in its reference forms: the weights of a row, the mass of a key, the output of a chunk or a decode step.

Shapes and precision as in `reference`, which re-exports everything here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

REDUCTIONS = ("rms", "mean", "max", "sum")


def wide(x: Tensor) -> Tensor:
    """float64 stays; everything narrower is computed in float32 (compaction.md 7.1)."""
    return x if x.dtype == torch.float64 else x.float()


def group_rows(queries: Tensor, kv_heads: int) -> Tensor:
    """(H_kv·G, L, D) query heads → (H_kv, G·L, D): the rows that share a KV head, concatenated, head-major."""
    heads, length, dim = queries.shape
    return queries.reshape(kv_heads, heads // max(1, kv_heads) * length, dim)


def attention_logits(queries: Tensor, keys: Tensor, scaling: float, bias: Tensor | None = None) -> Tensor:
    """q_i·k_j·scaling + bias_j: (H_kv, R, D), (H_kv, n, D), (H_kv, n) → (H_kv, R, n), float32 or float64.

    The product of half-precision inputs is accumulated and kept in float32: at |q·k| near 200 a bfloat16 logit is
    off by up to 0.5 (compaction.md 7.1). `bias` is additive, the β of attention matching (2.1): a key with bias β
    counts e^β times; −inf hides it.
    """
    logits = wide(queries) @ wide(keys).transpose(1, 2) * scaling
    return logits if bias is None else logits + bias.to(logits)[:, None, :]


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    limits: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    log_total: Tensor | None = None,
) -> Tensor:
    """α_ij of every row over the given keys: (H_kv, R, D), (H_kv, n, D) → (H_kv, R, n).

    With l_ij = q_i·k_j·scaling + bias_j, α_ij = softmax_j(l_ij) over these n keys (the segment; arXiv 2608.00902,
    eq. 2). Given `log_total` (H_kv, R), the log-sum-exp of every logit the row saw in the whole cache (as
    `decode_attention` returns it), α_ij = exp(l_ij − log_total_i): the model's own weights, whose sum is the
    share of the row that goes to the segment.

    `limits` (R,) is how many leading keys each row may see; None sees all. `bias` (H_kv, n) is additive. A row
    that sees no key has weights 0.
    """
    logits = attention_logits(queries, keys, scaling, bias)
    if limits is not None:
        hidden = torch.arange(keys.shape[1], device=keys.device)[None, :] >= limits[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    if log_total is not None:
        total = log_total.to(logits)[:, :, None]
        return (logits - total).exp().masked_fill(total == float("-inf"), 0.0)
    weights = logits.softmax(-1)
    if bias is not None and keys.shape[1] > 0:
        return weights.masked_fill_(logits.amax(-1, keepdim=True) == float("-inf"), 0.0)
    return weights if limits is None else weights.masked_fill_((limits <= 0)[:, None], 0.0)


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
) -> Tensor:
    """How much each key is read: (H_kv, R, D) queries, (H_kv, n, D) keys → (H_kv, n), float32 or float64.

    α = `attention_weights` (which see for `limits`, `bias`, `log_total`); then over the R rows, the G query heads of a
    KV head concatenated: rms = sqrt(mean α²) (arXiv 2608.00902, eq. 3), mean, max, or sum of `row_weights`
    (R,) or (H_kv, R) · α. With `positions` of the rows (R,) and of the keys (n,) or (H_kv, n), a weight counts only
    where the key lies at least `distance` before the query: the position correction of compaction.md 12, applied
    after the softmax. Without rows nothing is read: all 0. ValueError for an unknown reduction, and for row weights
    where they have no meaning.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}: {', '.join(REDUCTIONS)}")
    if row_weights is not None and reduction != "sum":
        raise ValueError(f"row_weights belong to the reduction sum, not {reduction}")
    weights = attention_weights(queries, keys, scaling, limits, bias=bias, log_total=log_total)
    if positions is not None:
        asked, held = positions[0], positions[1].expand(keys.shape[:2])
        weights = weights * (asked[:, None] - held[:, None, :] >= distance)
    if reduction == "sum" or queries.shape[1] == 0:
        scale = weights.new_ones(weights.shape[:2]) if row_weights is None else row_weights.to(weights)
        return (scale.expand(weights.shape[:2]).unsqueeze(1) @ weights).squeeze(1)
    if reduction == "rms":
        return weights.square().mean(1).sqrt()
    return weights.mean(1) if reduction == "mean" else weights.amax(1)


def log_totals(
    queries: Tensor, keys: Tensor, scaling: float, *, limits: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """log Σ_j exp(q_i·k_j·scaling + bias_j) over the keys that row i sees: (H_kv, R, D), (H_kv, n, D) → (H_kv, R).

    What `attention_weights` takes as `log_total`. −inf for a row that sees no key. `limits` and `bias` as there.
    """
    logits = attention_logits(queries, keys, scaling, bias)
    if limits is not None:
        hidden = torch.arange(keys.shape[1], device=keys.device)[None, :] >= limits[:, None]
        logits = logits.masked_fill(hidden, float("-inf"))
    return logits.logsumexp(-1)


def attention_use(
    queries: Tensor,
    keys: Tensor,
    scaling: float,
    *,
    limits: Tensor,
    positions: Tensor,
    first: int = 0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """How much L tokens read each key, and which of them last: (H, L, D), (H_kv, n, D) → two of (H_kv, n − first).

    ᾱ_ij is the mean over the query heads of a KV head of the weights of token i, which sees `limits`_i leading keys.
    The activity of a key is Σ_i ᾱ_ij; it was used by token i where ᾱ_ij · limits_i ≥ 1, that is, where it was read at
    least as much as by equal attention to all (compaction.md 12). The last use is the greatest of `positions` (L,)
    among those tokens, −1 where there is none. The first `first` keys take part in the softmax only.
    """
    heads, length, _ = queries.shape
    kv_heads, count = keys.shape[:2]
    group = heads // kv_heads
    rows = group_rows(queries, kv_heads)
    weights = attention_weights(rows, keys, scaling, limits.repeat(group), bias=bias)
    mean = weights.view(kv_heads, group, length, count)[..., first:].mean(1)
    used = mean * limits[:, None] >= 1
    last = torch.where(used, positions[:, None].to(mean.dtype), -1.0)
    return mean.sum(1), last.amax(1)


def chunk_attention(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """Attention of L new tokens over n cached ones (their own rows last), GQA without repeating KV.

    (H, L, D) queries, (H_kv, n, D) keys and values → (H, L, D). `mask` is additive, (G·L, n) in the row order of
    `group_rows`, or None where every row sees every key. `bias` (H_kv, n) is added to the logits of every row: the β of
    attention matching, 0 for a token that stands for itself.
    """
    heads, length, dim = queries.shape
    logits = attention_logits(group_rows(queries, keys.shape[0]), keys, scaling, bias)
    if mask is not None:
        logits = logits + wide(mask)
    out = logits.softmax(-1) @ wide(values)
    return out.reshape(heads, length, dim).to(queries.dtype)


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
    """One to a few queries against a cache, none hidden from any: output, log-sum-exp, and who was read.

    (H, L, D) queries, (H_kv, n, D) keys and values → out (H, L, D) in the queries' dtype; log_total (H, L) = log Σ_j
    exp(q·k_j·scaling + bias_j), float32 or float64, by which blocks merge (`merge_partials`) and weights become the
    model's own (`attention_weights`); and, on request, Σ over the G·L rows of a KV head of the weights of each key
    (H_kv, n): their running activity, without a second pass.

    `lengths` (H_kv,) is how many leading keys each KV head has (ragged caches); `bias` (H_kv, n) is additive. A row
    without keys gives output 0 and log_total −inf.
    """
    heads, length = queries.shape[:2]
    kv_heads, count = keys.shape[:2]
    logits, seen = attention_logits(group_rows(queries, kv_heads), keys, scaling, bias), wide(values)
    if lengths is not None:
        hidden = torch.arange(count, device=keys.device)[None, :] >= lengths[:, None]
        logits = logits.masked_fill(hidden[:, None, :], float("-inf"))
        # A hidden row may hold anything, NaN included: 0 · NaN must not reach the output.
        seen = seen.masked_fill(hidden[:, :, None], 0.0)
    total = logits.logsumexp(-1)
    weights = (logits - total[:, :, None]).exp().masked_fill((total == float("-inf"))[:, :, None], 0.0)
    out = (weights @ seen).reshape(heads, length, values.shape[-1]).to(queries.dtype)
    return out, total.reshape(heads, length), weights.sum(1) if activity else None


def merge_partials(outs: Sequence[Tensor] | Tensor, log_totals: Sequence[Tensor] | Tensor) -> tuple[Tensor, Tensor]:
    """Attention over blocks of keys from the attention over each: blocks of (H, L, D), (H, L) → (H, L, D), (H, L).

    o = Σ_b exp(l_b − l)·o_b with l = log Σ_b exp(l_b) (compaction.md 2.1). Exact, whatever the blocks; a block without
    keys (l_b = −inf) counts nothing. The output has the blocks' dtype, l that of the log-sum-exps.
    """
    parts, logs = torch.stack(list(outs)), wide(torch.stack(list(log_totals)))
    total = logs.logsumexp(0)
    weights = (logs - total).exp().masked_fill(total == float("-inf"), 0.0)
    return (weights.unsqueeze(-1) * wide(parts)).sum(0).to(parts.dtype), total
