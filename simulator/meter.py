"""`Meter`: where a replica's time goes, and how full its batch and its pool were, weighted by time."""

from __future__ import annotations

from typing import NamedTuple

from .blocks import BlockPool
from .cost import CostModel

SUMS = (
    "batch_s", "used_s", "held_s", "busy_s", "prefill_s", "weights_s", "kv_s", "host_s", "compaction_s",
    "fed_tokens", "again_tokens",
)  # fmt: skip


class Snapshot(NamedTuple):
    """A replica at one moment: requests running and waiting; blocks that hold anything, and that running requests or
    shared prefixes hold.
    """

    running: int
    waiting: int
    used_blocks: int
    held_blocks: int
    total_blocks: int

    @classmethod
    def of(cls, pool: BlockPool, running: int, waiting: int, growth: int) -> Snapshot:
        """From a pool to which `growth` blocks of the current stretch are still to be added."""
        used = min(pool.total, pool.total - pool.free + growth)
        return cls(running, waiting, used, pool.active + pool.read + growth, pool.total)


class Meter:
    """Running sums in seconds (`*_s`) and in units times seconds (`batch_s` requests, `used_s` and `held_s` blocks).

    `fed_tokens` were prefilled, `again_tokens` of them only because a cache was no longer there.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.batch_s = self.used_s = self.held_s = self.busy_s = 0.0
        self.prefill_s = self.weights_s = self.kv_s = self.host_s = self.compaction_s = 0.0
        self.fed_tokens = self.again_tokens = 0

    def account(self, now: float, batch: int, pool: BlockPool) -> None:
        """Add the time since the last look, spent with `batch` requests running."""
        span = now - self.clock
        self.clock = now
        self.batch_s += batch * span
        self.used_s += (pool.total - pool.free) * span
        self.held_s += (pool.active + pool.read) * span
        if batch:
            self.busy_s += span

    def decoded(self, cost: CostModel, decodes: int, steps: int, whole: float) -> None:
        """Split the `whole` seconds of a pure decode stretch by what they were spent on."""
        weights = cost.dense_s(decodes, decodes) * steps
        host = (cost.host_s + cost.host_sequence_s * decodes) * steps
        self.weights_s += weights
        self.host_s += host
        self.kv_s += whole - weights - host

    def grew(self, blocks: int, pool: BlockPool, span: float) -> None:
        """A decode stretch of `span` seconds took `blocks` more, evenly; `pool` is as it was at its start."""
        self.used_s += min(blocks, pool.free) * span / 2
        self.held_s += blocks * span / 2

    def feeds(self, tokens: int, again: int) -> None:
        """A prefill of `tokens` is admitted."""
        self.fed_tokens += tokens
        self.again_tokens += max(0, again)

    def prefilled(self, seconds: float, compaction: float) -> None:
        """What prefill chunks, and the compactions after them, added to a step."""
        self.prefill_s += seconds
        self.compaction_s += compaction
