"""Selection of the running policies: which rows stay when the budget says how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...kernels.reference import attention_mass, group_rows, pool_topk
from ..segments import size_of
from .attention import Attention
from .base import Policy
from .running import RunningPolicy
from .states import Chunk, Eviction, PolicyState, Rewrite, Scene
from .truncate import last_tokens, unchanged

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache


class RunningState(PolicyState):
    """Counts what may stay, by the policy's own rule, and knows which logical tokens are forced."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.policy = cast(RunningPolicy, policy)
        self.fixed = self.compactable = self.forced = 0
        self.is_forced = torch.zeros(scene.tokens, dtype=torch.bool, device=scene.device)

    def fed(self, chunk: Chunk) -> None:
        """Count the chunk's tokens and mark the forced among them."""
        count = chunk.end - chunk.begin
        if not self.policy.is_compactable(size_of(chunk.segment)):
            self.fixed += count
            return
        self.compactable += count
        offsets = self._forced_offsets(chunk.segment, chunk.begin, chunk.end)
        self.is_forced[[chunk.first + offset - chunk.begin for offset in offsets]] = True
        self.forced += len(offsets)

    def _forced_offsets(self, segment: TokenSegment, begin: int, end: int) -> list[int]:
        if segment.kind == "user":
            return list(range(begin, end))
        size = size_of(segment)
        return [o for o in range(begin, end) if self.policy.forced_in(size, o + 1) > self.policy.forced_in(size, o)]

    def allowed(self, rows: int) -> int | None:
        """How many compactable rows may stay of `rows`, or None if nothing must go."""
        allowed = self.policy.allowed(self.compactable, self.forced)
        return allowed if self.policy.must_evict(rows, allowed) else None

    def look(self, index: Tensor, cache: KvCache) -> Eviction | None:
        """Evict down to the budget when the trigger says so."""
        allowed = self.allowed(index.shape[2] - self.fixed)
        if allowed is None:
            return None
        tail = index[:, :, self.fixed :]
        forced = self.is_forced[tail.long()]
        return Eviction(self.fixed, pool_topk(self.scores(tail), allowed, forced) + self.fixed)

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | Rewrite | None:
        """For trigger=turn, look at the close of the turn."""
        return self.look(index, cache) if self.policy.trigger == "turn" else None

    def scores(self, tail: Tensor) -> Tensor:
        """Worth of every compactable row, (layers, H_kv, rows); larger stays."""
        return tail.float()


class SinkWindowState(RunningState):
    """The most recent tokens: the logical index is the score."""


class RandomState(RunningState):
    """One uniform number per layer, KV head and token, fixed for the whole run."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        generator = torch.Generator().manual_seed(scene.seed)
        size = (self.shape.layers, self.shape.kv_heads, scene.tokens)
        self.uniform = torch.rand(size, generator=generator).to(scene.device)

    def scores(self, tail: Tensor) -> Tensor:
        """The fixed numbers of the tokens present."""
        return self.uniform.gather(2, tail.long())


class AttentionState(RunningState):
    """Decayed activity of every compactable row, one float32 per layer and KV head."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(Attention, policy)
        self.activity = torch.zeros(self.shape.layers, self.shape.kv_heads, 0, device=self.device)
        self._weights = torch.zeros(0, device=self.device)
        self._positions = torch.zeros(0, device=self.device)

    def begin(self, chunk: Chunk) -> bool:
        """Age what is there, and make room for the chunk's rows."""
        if not self.policy.is_compactable(size_of(chunk.segment)):
            return False
        length, decay = chunk.end - chunk.begin, float(self.rule.decay)
        room = torch.zeros(*self.activity.shape[:2], length, device=self.device)
        self.activity = torch.cat([self.activity * decay**length, room], dim=2)
        self._weights = (1 - decay) * decay ** torch.arange(length - 1, -1, -1, device=self.device).float()
        self._positions = torch.arange(chunk.first, chunk.first + length, device=self.device)
        return True

    def observe(
        self, layer: int, queries: Tensor, keys: Tensor, scaling: float, index: Tensor, bias: Tensor | None
    ) -> None:
        """Add the chunk's decayed attention weights, averaged over the query heads of each KV head."""
        length, rows, group = queries.shape[1], keys.shape[1], self.shape.group
        limits = torch.arange(rows - length + 1, rows + 1, device=self.device).repeat(group)
        mass = attention_mass(
            group_rows(queries, self.shape.kv_heads),
            keys,
            scaling,
            reduction="sum",
            limits=limits,
            row_weights=self._weights.repeat(group) / group,
            counted=self._far_enough(index) if self.rule.locality == "distance" else None,
        )
        self.activity[layer] += mass[:, self.fixed :]

    def _far_enough(self, index: Tensor) -> Tensor:
        """(H_kv, G·L, rows): whether a key lies at least `distance` tokens before the query."""
        keys = torch.cat([index.long(), self._positions.expand(index.shape[0], -1)], dim=1)
        distance = self._positions.repeat(self.shape.group)[None, :, None] - keys[:, None, :]
        return distance >= self.rule.distance

    def scores(self, tail: Tensor) -> Tensor:
        """The activity; under `normalised`, divided by the decay weight of the queries that could see the token."""
        if self.rule.locality != "normalised":
            return self.activity
        age = self._positions[-1] + 1 - tail.float()
        return self.activity / (1 - float(self.rule.decay) ** age).clamp_min(1e-12)

    def evicted(self, eviction: Eviction) -> None:
        """Keep the activity of the rows that stay."""
        self.activity = self.activity.gather(2, eviction.index - eviction.start)

    def aux_bytes(self) -> int:
        """Bytes of the activity."""
        return self.activity.nbytes


class TruncateState(RunningState):
    """Text-level: the live text, token by token, the last `held_back` of it not fed yet."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.live: list[int] = []
        self.held_back = 0

    def holds_back(self, chunk: Chunk) -> bool:
        """The tool response closes the turn: it is cut with the rest before it is fed."""
        return chunk.segment.kind == "tool"

    def fed(self, chunk: Chunk) -> None:
        """Extend the live text."""
        super().fed(chunk)
        count = chunk.end - chunk.begin
        if self.policy.is_compactable(size_of(chunk.segment)):
            self.live += range(chunk.first, chunk.first + count)
        if self.holds_back(chunk):
            self.held_back += count

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Rewrite | None:
        """Cut the text to the budget; feed what follows the first dropped token, and what was held back."""
        rows = len(self.live) - self.held_back
        allowed = self.allowed(len(self.live))
        self.held_back = 0
        if allowed is None:
            return Rewrite(self.fixed + rows, self.live[rows:], cut=False) if rows < len(self.live) else None
        kept = last_tokens(self.is_forced[self.live].tolist(), allowed)
        same = min(unchanged(kept), rows)
        self.live = [self.live[i] for i in kept]
        return Rewrite(self.fixed + same, self.live[same:], cut=True)
