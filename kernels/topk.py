"""Which rows stay: the best of each head, forced ones first, and no two runs that differ.

Nothing is sorted. The score of the last row that stays divides a head into those above, those equal and those below:
what is above stays, and of the equal ones the first, as many as there is room for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .checks import flags, spreads, together
from .dispatch import Impl, choose
from .reference import pool_scores, wide


def pool_topk(
    scores: Tensor,
    keep: int,
    forced: Tensor | None = None,
    *,
    kernel: int = 1,
    pooling: str = "mean",
    impl: Impl = "auto",
) -> Tensor:
    """`reference.pool_topk`: (…, n) scores, (n,) or (…, n) bool → (…, keep) ascending indices, ties to the lower one.

    The three forms give the same indices; Triton's mean is a sum, which may order two means that round to one number.
    """
    together(scores=scores, forced=forced)
    if forced is not None:
        flags("forced", forced)
        spreads("forced", forced, *scores.shape)
    form = choose(impl, scores)
    # Integers of any size rank exactly in torch, and in float32 they would not.
    if form == "triton" and (kernel > 1 or scores.is_floating_point()):
        from .gpu.topk import pool_topk as on_gpu

        return on_gpu(scores, keep, forced, kernel=kernel, pooling=pooling)
    if form == "reference":
        return reference.pool_topk(scores, keep, forced, kernel=kernel, pooling=pooling)
    if keep < 0:
        raise ValueError(f"cannot keep {keep} tokens")
    ranked = pool_scores(scores, kernel, pooling)
    ranked = wide(ranked) if ranked.is_floating_point() else ranked
    count = scores.shape[-1]
    if ranked.numel() and bool(ranked.amax().isnan()):  # the largest of several is NaN where one of them is
        raise ValueError("scores contain NaN")
    if forced is not None:
        forced = forced.expand_as(scores)
        most = int(forced.sum(-1).max()) if scores.numel() else 0
        if most > keep:
            raise ValueError(f"{most} forced tokens do not fit into {keep}")
        top = float("inf") if ranked.is_floating_point() else torch.iinfo(ranked.dtype).max
        ranked = ranked.masked_fill(forced, top)
    if keep >= count or keep == 0 or scores.numel() == 0:
        return torch.arange(min(keep, count), device=scores.device).expand(*scores.shape[:-1], -1).contiguous()
    last = ranked.topk(keep, sorted=False).values.amin(-1, keepdim=True)
    chosen = ranked >= last
    if int(chosen.sum()) > keep * (chosen.numel() // count):
        above = ranked > last
        if forced is not None:
            above |= forced  # a forced row precedes all others, those of infinite score too
        equal = chosen & ~above
        room = keep - above.sum(-1, keepdim=True)
        chosen = above | (equal & (equal.cumsum(-1) <= room))
    return chosen.nonzero()[:, -1].view(*scores.shape[:-1], keep)
