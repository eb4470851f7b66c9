"""`BlockPool`: the cache of one replica as counts of blocks, never as block tables.

Every block is free, or held by a running session, or kept for an idle one (least recently used first to go),
or part of a shared prefix, which is counted once however many sessions read it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from .deployment import BLOCK_TOKENS


class Holder(Protocol):
    """What the pool needs to know of a session: how many blocks it holds itself."""

    blocks: int


def blocks_for(rows: int) -> int:
    """Blocks that `rows` rows take."""
    return -(-rows // BLOCK_TOKENS) if rows > 0 else 0


class BlockPool:
    """Counts of blocks. Mutates; `check` says whether they still add up to `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.active = 0
        self.idle: OrderedDict[Holder, None] = OrderedDict()
        self.idle_blocks = 0
        self.shared: dict[int, int] = {}
        self.evictions = 0

    @property
    def available(self) -> int:
        """Free blocks, and those that evicting every idle session would free."""
        return self.free + self.idle_blocks

    def take(self, count: int) -> None:
        """Give `count` blocks to a running session, evicting idle sessions while none are free.

        ValueError when they are not available: callers look first.
        """
        while self.free < count:
            if not self.idle:
                raise ValueError(f"{count} blocks asked of a pool with {self.free} left")
            victim, _ = self.idle.popitem(last=False)
            self.idle_blocks -= victim.blocks
            self.free += victim.blocks
            victim.blocks = 0
            self.evictions += 1
        self.free -= count
        self.active += count

    def give(self, count: int) -> None:
        """Take `count` blocks back from a running session."""
        self.active -= count
        self.free += count

    def park(self, holder: Holder) -> None:
        """A session goes idle with its blocks, as the most recently used."""
        self.active -= holder.blocks
        self.idle_blocks += holder.blocks
        self.idle[holder] = None

    def unpark(self, holder: Holder) -> bool:
        """An idle session runs again: True when its blocks are still there."""
        if holder not in self.idle:
            return False
        del self.idle[holder]
        self.idle_blocks -= holder.blocks
        self.active += holder.blocks
        return True

    def share(self, group: int, count: int) -> bool:
        """Keep `count` blocks just handed out as the prefix of `group`; False when it has one already."""
        if group in self.shared:
            return False
        self.shared[group] = count
        self.active -= count
        return True

    def check(self, holders: int) -> None:
        """Conservation: nothing lost, nothing counted twice. `holders` = blocks of the running sessions.

        AssertionError with the figures when they do not add up.
        """
        idle = sum(holder.blocks for holder in self.idle)
        shared = sum(self.shared.values())
        figures = (self.free, self.active, self.idle_blocks, shared, self.total)
        if self.free < 0 or holders != self.active or idle != self.idle_blocks:
            raise AssertionError(f"block counts are wrong: running {holders}, idle {idle}, pool says {figures}")
        if self.free + self.active + self.idle_blocks + shared != self.total:
            raise AssertionError(f"blocks lost or doubled (free, active, idle, shared, total): {figures}")
