"""`BlockPool`: the cache of one replica as counts of blocks, never as block tables.

Every block is free, or held by a running session, or kept for an idle one, or part of a prefix that a group of sessions
shares, which is counted once however many read it. When blocks are asked for and none is free, idle sessions lose
theirs, least recently used first and each from its tail, as a paged engine with a prefix cache frees them; a session
whose rest would be of no use goes whole. A prefix that nobody reads takes its place among them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .deployment import BLOCK_TOKENS


class Holder(Protocol):
    """What the pools need to know of a session: the blocks it holds itself, its plan's `shared` and `group`, and since
    when it is idle.
    """

    blocks: int
    parked: int
    since: float
    plan: Any

    @property
    def divisible(self) -> bool:
        """Whether what is left of it after an eviction is of use."""
        ...


@dataclass(eq=False, slots=True)
class Prefix:
    """The shared prefix of a group while nobody reads it: idle like a session."""

    group: int
    blocks: int
    since: float
    parked: int = 0
    divisible: bool = False


def blocks_for(rows: int) -> int:
    """Blocks that `rows` rows take."""
    return -(-rows // BLOCK_TOKENS) if rows > 0 else 0


class BlockPool:
    """Counts of blocks. Mutates; `check` says whether they still add up to `total`.

    `saved(holder, blocks)` is told what an idle session is about to lose.
    """

    def __init__(self, total: int, saved: Callable[[Any, int], object] | None = None) -> None:
        self.total = total
        self.free = total
        self.active = 0
        self.idle: OrderedDict[Holder | Prefix, None] = OrderedDict()
        self.idle_blocks = 0
        self.shared: dict[int, int] = {}  # group → blocks
        self.readers: dict[int, list[int]] = {}  # group → [running sessions, idle sessions]
        self.unread: dict[int, Prefix] = {}  # shared groups without readers, which are idle
        self.read = 0  # shared blocks that any session reads
        self.loose = 0  # those of them that no running one reads
        self.saved = saved
        self.evictions = 0  # sessions that lost something

    @property
    def available(self) -> int:
        """Free blocks, and those that evicting every idle session and every prefix of no running one would free."""
        return self.free + self.idle_blocks + self.loose

    def room(self, group: int) -> int:
        """`available` to a session that reads the prefix of `group`, which therefore stays."""
        own = self.readers.get(group)
        kept = self.shared.get(group, 0) if own is None or not own[0] else 0
        return self.free + self.idle_blocks + self.loose - kept

    def take(self, count: int) -> None:
        """Give `count` blocks to a running session, evicting while none are free.

        ValueError when they are not available: callers look first.
        """
        while self.free < count:
            if self.idle:
                victim = next(iter(self.idle))
                self.evict(victim, min(victim.blocks, count - self.free) if victim.divisible else victim.blocks)
            else:
                raise ValueError(f"{count} blocks asked of a pool with {self.free} left")
        self.free -= count
        self.active += count

    def give(self, count: int) -> None:
        """Take `count` blocks back from a running session."""
        self.active -= count
        self.free += count

    def evict(self, victim: Holder | Prefix, count: int) -> None:
        """Free the last `count` blocks of an idle session; it is idle no more once it holds none."""
        if isinstance(victim, Prefix):
            self._forget(victim)
            return
        if self.saved is not None and count:
            self.saved(victim, count)
        self.evictions += victim.blocks == victim.parked
        if count == victim.blocks:
            del self.idle[victim]
            self._quit(victim, 1, victim.since, oldest=True)
        victim.blocks -= count
        self.idle_blocks -= count
        self.free += count

    # -- sessions between idle and running -----------------------------------------------------------------

    def enter(self, holder: Holder) -> None:
        """A session runs: the prefix of its group stays."""
        self._join(holder, 0)

    def leave(self, holder: Holder, now: float) -> None:
        """A session runs no more."""
        self._quit(holder, 0, now)

    def park(self, holder: Holder) -> None:
        """A session goes idle with its blocks, as the most recently used."""
        holder.parked = holder.blocks
        self.active -= holder.blocks
        self.idle_blocks += holder.blocks
        self.idle[holder] = None
        self._join(holder, 1)

    def unpark(self, holder: Holder) -> bool:
        """An idle session holds its blocks as a running one: True when there are any."""
        if holder not in self.idle:
            return False
        del self.idle[holder]
        self._quit(holder, 1, holder.since)
        self.idle_blocks -= holder.blocks
        self.active += holder.blocks
        return True

    # -- shared prefixes -----------------------------------------------------------------------------------

    def share(self, group: int, count: int) -> bool:
        """Keep `count` blocks just handed out as the prefix of `group`; False when it has one already."""
        if group in self.shared:
            return False
        self.shared[group] = count
        self.active -= count
        running, idle = self.readers.get(group, (0, 0))
        self.read += count
        if not running:
            self.loose += count
        if not running and not idle:
            self._rest(group, 0.0)
        return True

    def _join(self, holder: Holder, state: int) -> None:
        if not holder.plan.shared:
            return
        group = holder.plan.group
        counts = self.readers.setdefault(group, [0, 0])
        if group in self.unread:
            prefix = self.unread.pop(group)
            del self.idle[prefix]
            self.idle_blocks -= prefix.blocks
            self.read += prefix.blocks
            self.loose += prefix.blocks
        if state == 0 and not counts[0]:
            self.loose -= self.shared.get(group, 0)
        counts[state] += 1

    def _quit(self, holder: Holder, state: int, now: float, *, oldest: bool = False) -> None:
        if not holder.plan.shared:
            return
        group = holder.plan.group
        counts = self.readers[group]
        counts[state] -= 1
        if state == 0 and not counts[0]:
            self.loose += self.shared.get(group, 0)
        if not counts[0] and not counts[1]:
            del self.readers[group]
            if group in self.shared:
                self._rest(group, now, oldest=oldest)

    def _rest(self, group: int, now: float, *, oldest: bool = False) -> None:
        prefix = self.unread[group] = Prefix(group, self.shared[group], now)
        self.idle[prefix] = None
        self.read -= prefix.blocks
        self.loose -= prefix.blocks
        self.idle_blocks += prefix.blocks
        if oldest:
            self.idle.move_to_end(prefix, last=False)

    def _forget(self, prefix: Prefix) -> None:
        del self.shared[prefix.group], self.unread[prefix.group], self.idle[prefix]
        self.idle_blocks -= prefix.blocks
        self.free += prefix.blocks

    # -- the books -----------------------------------------------------------------------------------------

    def check(self, holders: int) -> None:
        """Conservation: nothing lost, nothing counted twice. `holders` = blocks of the running sessions.

        AssertionError with the figures when they do not add up.
        """
        idle = sum(holder.blocks for holder in self.idle)
        read = {group: count for group, count in self.shared.items() if group not in self.unread}
        loose = sum(count for group, count in read.items() if not self.readers[group][0])
        figures = (self.free, self.active, self.idle_blocks, self.read, self.total)
        counted = (holders, idle, sum(read.values()), loose)
        if self.free < 0 or counted != (self.active, self.idle_blocks, self.read, self.loose):
            raise AssertionError(f"block counts are wrong: running {holders}, idle {idle}, pool says {figures}")
        if self.free + self.active + self.idle_blocks + self.read != self.total:
            raise AssertionError(f"blocks lost or doubled (free, active, idle, shared, total): {figures}")
