"""Activity of `attention`: decayed, summed, or summed over the last two blocks of queries."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from .attention import Attention
from .base import Policy
from .sight import Sight
from .states import Chunk, Scene
from .watch_state import WatchingState


class AttentionState(WatchingState):
    """`held[0]` is the activity, or the present block's sum and `held[1]` the previous block's."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(Attention, policy)
        self.gains = torch.zeros(self.policy.scalars, 0, device=self.device)
        self.gaining = [True] * self.policy.scalars

    def begin(self, chunk: Chunk) -> bool:
        """Age what is there, and set what each of the chunk's queries will add to each number."""
        if not super().begin(chunk):
            return False
        length = chunk.end - chunk.begin
        steps = torch.arange(length, device=self.device)
        if self.rule.window is None:
            decay = float(self.rule.decay)
            self.held *= decay**length
            self.gains = self._gain * decay ** (length - 1 - steps).float()[None]
            return True
        block = (self.compactable + steps) // self.rule.window
        last, passed = int(block[-1]), int(block[-1]) - (self.compactable - 1) // self.rule.window
        if self.compactable and passed:
            present = self.held[0] if passed == 1 else torch.zeros_like(self.held[0])
            self.held = torch.stack([torch.zeros_like(present), present])
        self.gains = torch.stack([block == last, block == last - 1]).float()
        # Most chunks lie in one block: the previous block's sum gains nothing, and costs nothing.
        self.gaining = [True, bool(block[0] < last)]
        return True

    @property
    def _gain(self) -> float:
        return 1.0 if self.rule.decay == 1 else 1 - float(self.rule.decay)

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Add the chunk's weights, each query with its gain."""
        positions = self._positions(index) if self.rule.locality == "distance" else None
        for number, gains in enumerate(self.gains):
            if self.gaining[number]:
                read = sight.activity(gains, positions, self.rule.distance)
                self.held[number, layer] += read[:, self.fixed :]

    def _positions(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Of the chunk's tokens (L,), and of the rows (H_kv, rows)."""
        assert self.chunk is not None
        new = torch.arange(self.chunk.first, self.chunk.first + self.gains.shape[1], device=self.device)
        return new, torch.cat([index.long(), new.expand(index.shape[0], -1)], dim=1)

    def scores(self, tail: Tensor) -> Tensor:
        """The activity; under `normalised`, divided by the most that the queries after the token could have given."""
        activity = self.held.sum(0)
        if self.rule.locality != "normalised":
            return activity
        age = self.fixed + self.compactable - tail.float()
        return activity / self._most(age).clamp_min(1e-12)

    def _most(self, age: Tensor) -> Tensor:
        if self.rule.window is not None:
            complete = (self.compactable - 1) // self.rule.window * self.rule.window
            return age.clamp_max(min(self.compactable, self.compactable - complete + self.rule.window))
        decay = float(self.rule.decay)
        return age if decay == 1 else 1 - decay**age
