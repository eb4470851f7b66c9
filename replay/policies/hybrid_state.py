"""Scores and selection of `hybrid`: final scores of what leaves the window, and the best rows of the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...kernels.topk import pool_topk
from .base import Policy
from .hybrid import Hybrid
from .sight import Sight
from .states import Chunk, Eviction, Scene
from .watch_state import WatchingState

if TYPE_CHECKING:
    from ..cache import KvCache

SCORE, USE, OWN = range(3)  # rows of `held`: activity until a token leaves the window, then its final score


def best_rows(score: Tensor, use: Tensor, keep: int, forced: Tensor | None = None) -> Tensor:
    """The `keep` best by (score, last use, position), forced ones first: (…, n) → (…, keep) ascending.

    `hybrid.pool_by_heap` says the same one token at a time.
    """
    if forced is not None:
        score = score.masked_fill(forced, float("inf"))
    # Stable sorts from the least to the most important key; later rows come first among equals.
    by_use = use.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    by_score = score.flip(-1).gather(-1, by_use).sort(dim=-1, descending=True, stable=True).indices
    order = score.shape[-1] - 1 - by_use.gather(-1, by_score)
    return order[..., :keep].sort(dim=-1).values


class HybridState(WatchingState):
    """The first `final` compactable rows have their final score; they are the same number in every head."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(Hybrid, policy)
        self.readers = scene.readers or (1,) * self.shape.layers
        self.final = self.prefix_end = 0
        self.is_entity = torch.zeros(scene.tokens, dtype=torch.bool, device=self.device)

    def fresh(self, room: Tensor, positions: Tensor) -> None:
        """A token is its own first use."""
        room[USE] = positions

    def begin(self, chunk: Chunk) -> bool:
        """Flag by rules and by role, and note where P ends."""
        start, end = chunk.first - chunk.begin, chunk.first + chunk.end - chunk.begin
        if "rules" in self.rule.entities:
            # From the segment's start on: in a segment that grows, a name may be one only by what follows it.
            self.is_entity[[start + offset for offset in chunk.segment.entities if offset < chunk.end]] = True
        if "role" in self.rule.entities and chunk.segment.kind in ("user", "assistant"):
            self.is_entity[chunk.first : end] = True
        if chunk.segment.kind == "prefix":
            self.prefix_end = end
        return super().begin(chunk)

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Activity of what has no final score yet; last use of every row."""
        assert self.chunk is not None
        positions = torch.arange(self.chunk.first, self.chunk.first + sight.queries.shape[1], device=self.device)
        read, last = sight.use(self.fixed, positions)
        # Called once per layer that reads this cache: together they are as many queries as one layer's.
        activity = read[:, self.final :] / self.readers[layer]
        self.held[SCORE, layer, :, self.final :] += activity
        if self.chunk.segment.kind == "assistant" and self.rule.gamma > 0:
            self.held[OWN, layer, :, self.final :] += activity
        self.held[USE, layer] = torch.maximum(self.held[USE, layer], last)

    def cut(self, tail: Tensor, allowed: int, cache: KvCache) -> Eviction:
        """The window's rows, as far as the forced rows outside leave room for them, and the best of the others."""
        rows, window = tail.shape[2], self.rule.window_of(self.compactable)
        outside = rows - window
        self._finish(tail, outside)
        forced = self.is_forced[tail.long()]
        inside = min(window, allowed - int(forced[0, 0, :outside].sum()))
        self.final = allowed - inside
        score, use = self.held[SCORE, ..., :outside], self.held[USE, ..., :outside]
        pool = best_rows(score, use, self.final, forced[..., :outside])
        recent = torch.arange(window, device=self.device).float().expand(*tail.shape[:2], window)
        newest = pool_topk(recent, inside, forced[..., outside:]) + outside
        return Eviction(self.fixed, torch.cat([pool, newest], dim=2) + self.fixed)

    def _finish(self, tail: Tensor, outside: int) -> None:
        """Give the rows that have left the window since the last eviction their final score."""
        leaving = slice(self.final, max(self.final, outside))
        token = tail[..., leaving].long()
        score = float(self.rule.alpha) * self.held[SCORE, ..., leaving]
        score += float(self.rule.beta) * self.is_entity[token] + float(self.rule.base) * (token < self.prefix_end)
        if self.rule.gamma > 0:
            score += float(self.rule.gamma) * self.held[OWN, ..., leaving]
        self.held[SCORE, ..., leaving] = score
