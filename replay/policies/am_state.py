"""Selection and fits of `am`, all heads of a layer at once."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ...kernels.compact import compact_kv
from ...kernels.fit import heldout_fit, ridge_fit
from ...kernels.mass import log_totals
from .am import AttentionMatching, held_out, most_rows
from .base import Policy
from .captures import Rows, draw
from .proxy_state import ProxyState
from .segment_state import Chosen, SegmentView
from .states import Scene


class AttentionMatchingState(ProxyState):
    """`fits` counts the heads, over layers and segments, that got β and new values; `fallbacks` the others."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(AttentionMatching, policy)
        self.fits = 0
        self.fallbacks = 0

    def choose(self, view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        """te's choice under all rows together, then β (H_kv, keep) and values (H_kv, keep, D) for it."""
        rows = self.together(view)
        index = self.select([] if rows is None else [rows], view, keep, forced)
        plain = Chosen(
            index, compact_kv(view.keys, view.values, index)[1], torch.zeros(index.shape, device=self.device)
        )
        if rows is None or not self.rule.fits(rows.queries.shape[1], keep):
            self.fallbacks += len(index)
            return plain
        return self._fitted(plain, rows, view, forced[index])

    def together(self, view: SegmentView) -> Rows | None:
        """The rows of all sources: others down-sampled to the first future one's, concatenated, capped."""
        found = [(source, self.source_rows(source, view)) for source in self.rule.proxies]
        named = [(source, rows) for source, rows in found if rows is not None]
        if not named:
            return None
        most = most_rows([source for source, _ in named], [rows.queries.shape[1] for _, rows in named])
        sources = [rows if most is None else self.captures.capped(rows, most) for _, rows in named]
        return self.captures.capped(concatenated(sources, view.keys.shape[1]))

    def shares(self, rows: Rows, view: SegmentView) -> Tensor | None:
        """(H_kv, R) part of each row's attention that went to the segment, or None where all rows count alike."""
        if self.rule.weighting == "none":
            return None
        assert rows.totals is not None
        here = log_totals(rows.queries, view.keys, view.scaling, limits=rows.seen)
        return (here - rows.totals.masked_fill(rows.totals == -torch.inf, torch.inf)).exp()

    def _fitted(self, plain: Chosen, rows: Rows, view: SegmentView, fixed: Tensor) -> Chosen:
        problem = (rows.queries, view.keys, view.values, plain.index, view.scaling)
        options = {
            "ridge": float(self.rule.ridge),
            "beta_limit": float(self.rule.beta_limit),
            "row_weights": self.shares(rows, view),
            "fixed": fixed,
        }
        if self.rule.fallback == "none":
            self.fits += len(fixed)
            bias, values = ridge_fit(*problem, **options)
            return Chosen(plain.index, values, bias)
        count = rows.queries.shape[1]
        held = torch.zeros(count, dtype=torch.bool, device=self.device)
        held[draw(count, self.captures.seed)[: held_out(count)]] = True
        bias, values, worse = heldout_fit(*problem, held, **options)
        assert plain.values is not None
        assert plain.bias is not None
        fallen = int(worse.sum())
        self.fallbacks += fallen
        self.fits += len(worse) - fallen
        return Chosen(
            plain.index,
            torch.where(worse[:, None, None], plain.values, values),
            torch.where(worse[:, None], plain.bias, bias),
        )


def concatenated(sources: list[Rows], tokens: int) -> Rows:
    """Several sources' rows of a segment of `tokens` tokens, one after the other."""
    totals = seen = None
    if all(rows.totals is not None for rows in sources):
        totals = torch.cat([rows.totals for rows in sources if rows.totals is not None], dim=1)
    if any(rows.seen is not None for rows in sources):
        whole = [torch.full(rows.queries.shape[1:2], tokens, device=rows.queries.device) for rows in sources]
        seen = torch.cat([w if rows.seen is None else rows.seen for w, rows in zip(whole, sources, strict=True)])
    return Rows(torch.cat([rows.queries for rows in sources], dim=1), totals, seen)
