"""Scoring of `adaptive`: one float32 score per row beyond P, renewed by every turn's assistant queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...kernels.mass import attention_mass
from ...kernels.topk import pool_topk
from ..segments import size_of
from .adaptive import Adaptive
from .base import Policy
from .captures import Captures, Key
from .protect import forced_offsets
from .states import Chunk, Eviction, PolicyState, Scene

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache
    from .sight import Sight


class AdaptiveState(PolicyState):
    """`ends[t]` is the logical token after turn t; scores lie in row order, P left out."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.policy = cast(Adaptive, policy)
        self.captures = Captures(scene.shape, scene.seed)
        self.fixed = 0
        self.ends: list[int] = []
        self.is_forced = torch.zeros(scene.tokens, dtype=torch.bool, device=scene.device)
        self.tokens = self.user = self.forced = 0
        self._counts: list[tuple[int, int, int]] = []
        size = (scene.shape.layers, scene.shape.kv_heads, 0)
        self.scores = torch.zeros(size, device=scene.device)
        self.mass = torch.zeros(size, device=scene.device)
        self._scaling = 1.0
        self._key: Key | None = None

    def begin(self, chunk: Chunk) -> bool:
        """Capture what the assistant asks; the first turn has nothing to ask about."""
        segment = chunk.segment
        asks = segment.kind == "assistant" and segment.turn > 0
        self._key = Key(segment.turn, segment.kind, "future") if asks else None
        return asks

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Keep the queries and their log-sum-exp over the whole cache."""
        assert self._key is not None
        self._scaling = sight.scaling
        self.captures.add(self._key, layer, sight.queries, sight.log_totals())

    def fed(self, chunk: Chunk) -> None:
        """Count the chunk's tokens, and make room for their scores."""
        segment, count = chunk.segment, chunk.end - chunk.begin
        if segment.kind == "prefix":
            self.fixed += count
            return
        self._reach(segment.turn)
        self.ends[segment.turn] = chunk.first + count
        forced = self._forced(segment, chunk.begin, chunk.end)
        self.is_forced[[chunk.first + offset - chunk.begin for offset in forced]] = True
        tokens, user, protected = self._counts[segment.turn]
        if segment.kind == "user":
            self._counts[segment.turn] = (tokens, user + count, protected)
        else:
            self._counts[segment.turn] = (tokens + count, user, protected + len(forced))
        room = torch.zeros(*self.scores.shape[:2], count, device=self.device)
        self.scores = torch.cat([self.scores, room], dim=2)
        if self.policy.loss is not None:
            self.mass = torch.cat([self.mass, room], dim=2)

    def _reach(self, turn: int) -> None:
        """Turns up to `turn` exist, also those without a token: they end where the one before ended."""
        while len(self.ends) <= turn:
            self.ends.append(self.ends[-1] if self.ends else self.fixed)
            self._counts.append((0, 0, 0))

    def _forced(self, segment: TokenSegment, begin: int, end: int) -> list[int]:
        if segment.kind == "user":
            return list(range(begin, end))
        return [o for o in forced_offsets(size_of(segment), self.policy.protect) if begin <= o < end]

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | None:
        """Renew the scores; what is old enough competes for the pool."""
        self._reach(turn)
        self._score(turn, index, cache)
        self.captures.drop(self.captures.held())
        due = turn - self.policy.delay
        if due < 0:
            return None
        tokens, user, forced = self._counts[due]
        self.tokens, self.user, self.forced = self.tokens + tokens, self.user + user, self.forced + forced
        tail = index[:, :, self.fixed :]
        pool = int((tail[0, 0] < self.ends[due]).sum())
        allowed = self.policy.allowed(self.tokens, self.user, self.forced, tail.shape[2] - pool)
        if allowed is None:
            allowed = self._covering(tail, pool, due)
        elif allowed >= pool:
            return None
        must = self.is_forced[tail[:, :, :pool].long()]
        kept = pool_topk(self.scores[:, :, :pool], min(allowed, pool), must)
        recent = torch.arange(pool, tail.shape[2], device=self.device).expand(*kept.shape[:2], -1)
        return Eviction(self.fixed, torch.cat([kept, recent], dim=2) + self.fixed)

    def _score(self, turn: int, index: Tensor, cache: KvCache) -> None:
        """What this turn's assistant read of every earlier token that is still held."""
        before = self.ends[turn - 1] if turn else 0
        rows = int((index[0, 0] < before).sum())
        for layer in range(self.shape.layers) if rows > self.fixed else ():
            found = self.captures.rows(self.captures.held(), layer)
            if found is None:
                return
            queries, totals, _ = self.captures.capped(found)
            keys = cache.view(layer)[0][:, self.fixed : rows]
            read = attention_mass(queries, keys, self._scaling, reduction="rms", log_total=totals)
            here = self.scores[layer, :, : rows - self.fixed]
            here.copy_(torch.maximum(here, read))
            if self.policy.loss is not None:
                got = attention_mass(queries, keys, self._scaling, reduction="mean", log_total=totals)
                self.mass[layer, :, : rows - self.fixed] += got

    def _covering(self, tail: Tensor, pool: int, due: int) -> int:
        """Rows of the pool with the fewest of turn `due` that hold 1 − loss of the attention its tokens got.

        The number is one for all layers and heads: the share is averaged over them.
        """
        first = int((tail[0, 0] < self.ends[due] - sum(self._counts[due][:2])).sum())
        scores, mass = self.scores[:, :, first:pool], self.mass[:, :, first:pool]
        forced = self.is_forced[tail[:, :, first:pool].long()]
        order = scores.masked_fill(forced, float("inf")).sort(dim=2, descending=True, stable=True).indices
        held = mass.gather(2, order).cumsum(2)
        share = (held / held[..., -1:].clamp_min(1e-30)).mean((0, 1))
        assert self.policy.loss is not None
        enough = int((share < 1 - float(self.policy.loss)).sum()) + 1
        _, user, protected = self._counts[due]
        return first + min(max(enough, user + protected), pool - first)

    def evicted(self, eviction: Eviction) -> None:
        """Keep the scores of the rows that stay."""
        rows = eviction.index - eviction.start
        self.scores = self.scores.gather(2, rows)
        if self.policy.loss is not None:
            self.mass = self.mass.gather(2, rows)

    def aux_bytes(self) -> int:
        """Bytes of captured queries and scores."""
        return self.captures.nbytes + self.scores.nbytes + self.mass.nbytes
