"""What `attention`, `hybrid` and `merge` share: numbers per compactable row, fed by every query's attention."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ...kernels.reference import attention_weights, group_rows
from ..segments import size_of
from .base import Policy
from .running_states import RunningState
from .states import Chunk, Eviction, Scene


class WatchingState(RunningState):
    """`held` (numbers, layers, H_kv, compactable rows) float32: what the policy's `scalars` counts."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        size = (self.policy.scalars, self.shape.layers, self.shape.kv_heads, 0)
        self.held = torch.zeros(size, device=self.device)
        self.chunk: Chunk | None = None

    def begin(self, chunk: Chunk) -> bool:
        """Make room for the chunk's rows."""
        self.chunk = chunk
        if not self.policy.is_compactable(size_of(chunk.segment)):
            return False
        positions = torch.arange(chunk.first, chunk.first + chunk.end - chunk.begin, device=self.device)
        room = torch.zeros(*self.held.shape[:3], len(positions), device=self.device)
        self.fresh(room, positions)
        self.held = torch.cat([self.held, room], dim=3)
        return True

    def fresh(self, room: Tensor, positions: Tensor) -> None:
        """Set what the numbers (numbers, layers, H_kv, L) of new rows start with; zero unless said here."""

    def observe(
        self, layer: int, queries: Tensor, keys: Tensor, scaling: float, index: Tensor, bias: Tensor | None
    ) -> None:
        """Turn the chunk's queries into weights, and note them."""
        length, rows, group = queries.shape[1], keys.shape[1], self.shape.group
        limits = torch.arange(rows - length + 1, rows + 1, device=self.device)
        folded = group_rows(queries, self.shape.kv_heads)
        weights = attention_weights(folded, keys, scaling, limits.repeat(group), bias=bias)
        self.note(layer, weights.view(-1, group, length, rows).mean(1), index)

    @abstractmethod
    def note(self, layer: int, weights: Tensor, index: Tensor) -> None:
        """(H_kv, L, rows) weights, averaged over the query heads of each KV head; `index` as in `observe`."""

    def evicted(self, eviction: Eviction) -> None:
        """Keep the numbers of the rows that stay."""
        index = (eviction.index - eviction.start).expand(self.held.shape[0], -1, -1, -1)
        self.held = self.held.gather(3, index)

    def aux_bytes(self) -> int:
        """Bytes of the numbers."""
        return self.held.nbytes
