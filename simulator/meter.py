"""`Meter`: where a replica's time goes, and how full its batch and its pool were, weighted by time."""

from __future__ import annotations

from .blocks import BlockPool
from .cost import CostModel

SUMS = ("batch_s", "used_s", "held_s", "busy_s", "prefill_s", "weights_s", "kv_s", "host_s", "compaction_s")


class Meter:
    """Running sums in seconds (`*_s`) and in units times seconds (`batch_s` requests, `used_s` and `held_s` blocks)."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.batch_s = self.used_s = self.held_s = self.busy_s = 0.0
        self.prefill_s = self.weights_s = self.kv_s = self.host_s = self.compaction_s = 0.0

    def account(self, now: float, batch: int, pool: BlockPool) -> None:
        """Add the time since the last look, spent with `batch` requests running."""
        span = now - self.clock
        self.clock = now
        self.batch_s += batch * span
        self.used_s += (pool.total - pool.free) * span
        self.held_s += (pool.active + sum(pool.shared.values())) * span
        if batch:
            self.busy_s += span

    def decoded(self, cost: CostModel, decodes: int, steps: int, whole: float) -> None:
        """Split the `whole` seconds of a pure decode stretch by what they were spent on."""
        weights = cost.weights_s * steps
        host = (cost.host_s + cost.host_sequence_s * decodes) * steps
        self.weights_s += weights
        self.host_s += host
        self.kv_s += whole - weights - host

    def prefilled(self, seconds: float, compaction: float) -> None:
        """What prefill chunks, and the compactions after them, added to a step."""
        self.prefill_s += seconds
        self.compaction_s += compaction
