"""Watches the reference run: how much attention every token received from the tokens after it.

No policy has this state: `kvmill replay --explain` puts it in the place of `full`'s. It evicts nothing, and is no part
of the memory that is measured.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .base import Policy
from .sight import Sight
from .states import Chunk, PolicyState, Scene


class MassState(PolicyState):
    """`mass` (tokens,) float32: by logical token, Σ over later queries of the weight it got, averaged over layers and
    query heads (so over KV heads too). It grows with the number of later queries.

    It does not ask for what a single token's attention read (`reads`): the pass is the same with it and without it.
    """

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.mass = torch.zeros(scene.tokens, device=self.device)
        self.passes = sum(scene.readers) or self.shape.layers
        self.positions = torch.zeros(0, dtype=torch.int64, device=self.device)

    def begin(self, chunk: Chunk) -> bool:
        """Watch every chunk."""
        self.positions = torch.arange(chunk.first, chunk.first + chunk.end - chunk.begin, device=self.device)
        return True

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Add one layer's weights. Nothing was evicted: row r is logical token r. What a token reads of itself is left
        out, since it tells nothing about who needs it later.
        """
        rows = sight.keys.shape[1]
        held = torch.arange(rows, device=self.device).expand(sight.keys.shape[:2])
        # Its own look at every chunk: `read` is there only where another policy on the same cache asked for it.
        received = replace(sight, read=None).activity(positions=(self.positions, held), distance=1)
        self.mass[:rows] += received.float().mean(0) / self.passes
