"""The meaning of every operation, in plain torch. Faster paths change no signature and are tested against this.

Shapes: H_kv key-value heads, G query heads per KV head, H = H_kv·G, L query tokens, R = G·L query rows, n keys, m kept
keys, D head dimension. Everything is computed in float32, or in float64 when the inputs are float64. Nothing draws
random numbers and nothing adds in an order that varies: the same inputs give the same bits on one machine.

Attention lives in `reference_attention`, the fits of attention matching in `reference_fit`, merging in
`reference_merge`. Here: which rows stay, and moving them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from .reference_attention import (
    REDUCTIONS,
    attention_logits,
    attention_mass,
    attention_use,
    attention_weights,
    chunk_attention,
    decode_attention,
    group_rows,
    log_totals,
    merge_partials,
    wide,
)
from .reference_fit import fit_mass, fit_values, heldout_fit, output_error, ridge_fit
from .reference_merge import k_means, merge_kv, nearest_earlier, rotate_keys

__all__ = [
    "REDUCTIONS",
    "attention_logits",
    "attention_mass",
    "attention_use",
    "attention_weights",
    "chunk_attention",
    "compact_blocks",
    "compact_kv",
    "decode_attention",
    "fit_mass",
    "fit_values",
    "group_rows",
    "heldout_fit",
    "k_means",
    "log_totals",
    "merge_kv",
    "merge_partials",
    "nearest_earlier",
    "output_error",
    "pool_scores",
    "pool_topk",
    "ridge_fit",
    "rotate_keys",
    "wide",
]


def pool_topk(
    scores: Tensor, keep: int, forced: Tensor | None = None, *, kernel: int = 1, pooling: str = "mean"
) -> Tensor:
    """The `keep` best of each row, forced ones first: (…, n) scores, (n,) or (…, n) bool → (…, keep) ascending.

    Scores are pooled along n first, over windows of `kernel` tokens that begin kernel//2 before each token (SnapKV,
    arXiv 2404.14469): `mean` counts the zeros beyond the ends, as its average pooling does; `max` ignores them. Ties
    go to the lower index. All forced tokens are kept, whatever their score: ValueError where `keep` is below their
    number, for scores that are not numbers, and for an unknown pooling. `keep` beyond n keeps all n.
    """
    if keep < 0:
        raise ValueError(f"cannot keep {keep} tokens")
    pooled = pool_scores(scores, kernel, pooling)
    if bool(pooled.isnan().any()):
        raise ValueError("scores contain NaN")
    order = pooled.sort(dim=-1, descending=True, stable=True).indices
    if forced is not None:
        mask = forced.expand_as(scores)
        most = int(mask.sum(-1).max()) if scores.numel() else 0
        if most > keep:
            raise ValueError(f"{most} forced tokens do not fit into {keep}")
        # A second stable sort, not an infinite score: a score may be infinite itself.
        first = mask.gather(-1, order).byte().sort(dim=-1, descending=True, stable=True).indices
        order = order.gather(-1, first)
    return order[..., :keep].sort(dim=-1).values


def pool_scores(scores: Tensor, kernel: int, pooling: str) -> Tensor:
    """The scores that `pool_topk` ranks: (…, n) → (…, n). ValueError for an unknown pooling and a kernel below 1."""
    if pooling not in ("mean", "max"):
        raise ValueError(f"unknown pooling {pooling!r}: mean or max")
    if kernel < 1:
        raise ValueError(f"the pooling kernel must be 1 or more, not {kernel}")
    if kernel == 1 or scores.numel() == 0:
        return scores
    lines = wide(scores).reshape(-1, 1, scores.shape[-1])
    pool = avg_pool1d if pooling == "mean" else max_pool1d
    # An even window gives one more value than there are tokens: the last one has no token.
    return pool(lines, kernel, stride=1, padding=kernel // 2)[..., : scores.shape[-1]].reshape(scores.shape)


def compact_kv(keys: Tensor, values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Gather the kept rows: (H_kv, n, D) keys and values → two new (H_kv, m, D) tensors.

    `index` is (H_kv, m), one list per head, or (m,), one for all heads.
    """
    if index.dim() == 1:
        return keys.index_select(1, index), values.index_select(1, index)
    rows = index.unsqueeze(-1)
    return (
        keys.gather(1, rows.expand(-1, -1, keys.shape[-1])),
        values.gather(1, rows.expand(-1, -1, values.shape[-1])),
    )


def compact_blocks(keys: Tensor, values: Tensor, table: Tensor, rows: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Move the rows `index` of one sequence to its front in a paged cache, in place, and list the freed blocks.

    Keys and values (blocks, H_kv, block, D): slot r mod block of block `table`[r // block] holds row r of the
    sequence, and `rows` of them are in use. `index` (m,) ascends and is shared by all heads, as a slot holds all heads
    of a token (compaction.md 5.2). Every row moves to a lower place or stays, so a forward copy overwrites nothing that
    is still needed. Returns the table of the ⌈m / block⌉ blocks that hold the kept rows, in order, and the block
    numbers of the rest of `table`, in order. The blocks must belong to this sequence alone.

    ValueError for an index that does not ascend or leaves the rows in use, and for a table too short for them.
    """
    block, keep = keys.shape[2], index.shape[0]
    if rows > table.shape[0] * block:
        raise ValueError(f"{rows} rows do not fit into {table.shape[0]} blocks of {block}")
    if keep and (bool((index.diff() <= 0).any()) or int(index[0]) < 0 or int(index[-1]) >= rows):
        raise ValueError(f"the index must ascend and lie in 0…{rows - 1}")
    to = torch.arange(keep, device=index.device)
    for x in (keys, values):
        x[table[to // block], :, to % block] = x[table[index // block], :, index % block]
    used = -(-keep // block)
    return table[:used], table[used:]
