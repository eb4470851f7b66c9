"""What every running policy's state counts, and the states that do not score: `sink_window` and `random`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...errors import UserError
from ...kernels.compact import compact_kv
from ...kernels.rotate import rotate_keys
from ...kernels.topk import pool_topk
from ..segments import size_of
from .base import Policy
from .recency import SinkWindow
from .running import RunningPolicy
from .states import Chunk, Eviction, PolicyState, Rewrite, Scene

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
        return None if allowed is None else self.cut(index[:, :, self.fixed :], allowed, cache)

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | Rewrite | None:
        """For trigger=turn, look at the close of the turn."""
        return self.look(index, cache) if self.policy.trigger == "turn" else None

    def cut(self, tail: Tensor, allowed: int, cache: KvCache) -> Eviction:
        """Keep the `allowed` best of the compactable rows, whose logical tokens are `tail` (layers, H_kv, rows)."""
        forced = self.is_forced[tail.long()]
        return Eviction(self.fixed, pool_topk(self.scores(tail), allowed, forced) + self.fixed)

    def scores(self, tail: Tensor) -> Tensor:
        """Worth of every compactable row, (layers, H_kv, rows); larger stays."""
        return tail.float()


class SinkWindowState(RunningState):
    """The most recent tokens: the logical index is the score. Under renumber, row r sits at position r."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.renumber = cast(SinkWindow, policy).renumber

    def begin(self, chunk: Chunk) -> bool:
        """Observes nothing; refuses models whose keys cannot be turned to another position."""
        if self.renumber and self.scene.frequencies is None:
            raise UserError("renumber=true turns keys by rotary frequencies, which this model does not have")
        return False

    def cut(self, tail: Tensor, allowed: int, cache: KvCache) -> Eviction:
        """The rows that stay move up to the position of their row."""
        plain = super().cut(tail, allowed, cache)
        if not self.renumber:
            return plain
        rows = self.fixed + allowed
        moved = torch.arange(self.fixed, rows, device=self.device) - plain.index
        return Eviction(plain.start, plain.index, keys=self._turned(plain.index, moved, cache), position=rows)

    def _turned(self, index: Tensor, moved: Tensor, cache: KvCache) -> Tensor:
        assert self.scene.frequencies is not None
        out: list[Tensor] = []
        for layer in range(self.shape.layers):
            keys, _ = cache.view(layer)
            kept, _ = compact_kv(keys, keys[..., :0], index[layer])
            out.append(rotate_keys(kept, moved[layer], self.scene.frequencies))
        return torch.stack(out)


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
