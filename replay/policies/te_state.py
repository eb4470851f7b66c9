"""Scoring of `te`: each source of proxy queries fills its share of the kept rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.reference import pool_topk
from .proxy_state import ProxyState
from .segment_state import Chosen, SegmentView, shared


class TokenEvictionState(ProxyState):
    """Keeps the keys that proxy queries read most."""

    def choose(self, view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        """Forced tokens, then each source's best in turn, its share of what is left."""
        heads, count = view.keys.shape[:2]
        scores = [shared(self.score(rows, view), self.policy.granularity) for rows in self.sources(view)]
        taken = forced.expand(heads, -1)
        if not scores:
            # No later query exists (a turn without assistant tokens): keep the forced, then the first tokens.
            return Chosen(pool_topk(torch.zeros(heads, count, device=self.device), keep, taken))
        free = keep - int(forced.sum())
        for number, score in enumerate(scores):
            share = free * (number + 1) // len(scores) - free * number // len(scores)
            rows = pool_topk(score, int(taken[0].sum()) + share, taken)
            taken = torch.zeros_like(taken).scatter(1, rows, True)
        return Chosen(taken.nonzero()[:, 1].view(heads, keep))
