"""What `attention`, `hybrid` and `merge` share: numbers per compactable row, fed by every query's attention."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..segments import size_of
from .base import Policy
from .running_states import RunningState
from .sight import Sight
from .states import Chunk, Eviction, Scene


class WatchingState(RunningState):
    """`held` (numbers, layers, H_kv, compactable rows) float32: what the policy's `scalars` counts."""

    reads = True

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

    @abstractmethod
    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Note how much the chunk's queries read each row."""

    def evicted(self, eviction: Eviction) -> None:
        """Keep the numbers of the rows that stay."""
        index = (eviction.index - eviction.start).expand(self.held.shape[0], -1, -1, -1)
        self.held = self.held.gather(3, index)

    def aux_bytes(self) -> int:
        """Bytes of the numbers."""
        return self.held.nbytes
