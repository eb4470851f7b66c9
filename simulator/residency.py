"""`Residency`: what one replica still has of sessions that are not running, on its GPUs and in host memory.

Between turns a session's cache stays until pressure evicts it, from its tail; or leaves after a time to live; or moves
to host memory and is loaded again before its next turn, over a link that serves one session at a time. Rows that are
those of a text are found again by hash, as far as they are there. Compacted rows are of no use unless all of them are.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from .blocks import BlockPool
from .cost import CostModel
from .deployment import BLOCK_TOKENS, GIB, Deployment
from .host import HostPool
from .live import Live


class Prefill(NamedTuple):
    """`feed` tokens are prefilled on `start` rows up to `end` rows, once `need` blocks are held, `lent` of them for the
    group's prefix; `pay` seconds of compaction or copying end it. `whole`: all that was kept is there.
    """

    start: int
    feed: int
    end: int
    need: int
    lent: int
    pay: float
    whole: bool


class Residency:
    """The pools of one replica, and what is found in them. Mutates sessions and pools; times in seconds."""

    def __init__(self, deployment: Deployment, cost: CostModel) -> None:
        bytes_a_block = deployment.row_bytes() * deployment.tp * BLOCK_TOKENS
        self.block_s = cost.reload_s(bytes_a_block)
        self.ttl_s, self.beside = deployment.ttl_s, deployment.compaction == "beside"
        self.total = deployment.blocks()
        copies = deployment.offloads or deployment.preemption == "swap"
        self.host = HostPool(int(deployment.host_gib * GIB * deployment.tp // bytes_a_block) if copies else 0)
        self.offloads, self.swaps = deployment.offloads, deployment.preemption == "swap"
        self.link_free_s = 0.0
        self.reload_s = 0.0  # seconds that the link was busy
        self.pool = self._pool()

    def _pool(self) -> BlockPool:
        return BlockPool(self.total, self.host.put if self.offloads else None)

    def lose(self) -> None:
        """Everything is gone: the replica failed."""
        for session in self.pool.idle:
            session.blocks = 0
        for guest in list(self.host.guests):
            self.host.drop(guest)
        self.pool = self._pool()
        self.link_free_s = 0.0

    # -- idle sessions -------------------------------------------------------------------------------------

    def keep(self, session: Live, now: float) -> None:
        """A session goes idle with its blocks."""
        session.since = now
        self.forget_copy(session)
        self.pool.park(session)

    def expire(self, now: float) -> None:
        """Caches that have been idle for the time to live leave."""
        pool = self.pool
        while pool.idle and self.ttl_s < inf:
            oldest = next(iter(pool.idle))
            if oldest.since + self.ttl_s > now:
                return
            pool.evict(oldest, oldest.blocks)

    def next_expiry_s(self) -> float:
        """When the next idle cache's time to live is over; infinite when none ever is."""
        oldest = next(iter(self.pool.idle), None) if self.ttl_s < inf else None
        return inf if oldest is None else oldest.since + self.ttl_s

    def drop(self, session: Live) -> None:
        """Free whatever a session holds, here and in host memory."""
        if session in self.pool.idle:
            self.pool.unpark(session)
        self.pool.give(session.blocks)
        session.blocks = 0
        self.forget_copy(session)

    def forget_copy(self, session: Live) -> None:
        """Free its blocks in host memory."""
        session.fetched = session.swapped = False
        if session.host:
            self.host.drop(session)

    def leave(self, session: Live, decoding: bool, now: float) -> None:
        """Leave the rows of a preempted request to be found again, or drop them."""
        if not session.plan.divisible or session.lent:
            self.drop(session)
            return
        if not decoding:  # whole blocks of what has been fed
            fed = max(0, int(session.at) - session.plan.shared) // BLOCK_TOKENS
            self.pool.give(session.blocks - fed)
            session.blocks = fed
        if session.blocks:
            self.keep(session, now)

    def swap_out(self, session: Live) -> bool:
        """Copy all that a preempted session holds to the host and free it here; False when it cannot be."""
        if not self.swaps or not self.host.put(session, session.blocks):
            return False
        self.pool.give(session.blocks)
        session.blocks, session.swapped = 0, True
        return True

    # -- a turn arrives ------------------------------------------------------------------------------------

    def here(self, session: Live) -> bool:
        """Whether this replica has any of it."""
        return session in self.pool.idle or session.host > 0

    def loaded(self, session: Live) -> bool:
        """Whether the prefix of its group is there."""
        return not session.plan.shared or session.plan.group in self.pool.shared

    def complete(self, session: Live) -> bool:
        """Whether all that it went idle with is there, or has been loaded from the host."""
        there = session.blocks if session in self.pool.idle else 0
        if there and there == session.parked:
            return True
        return session.fetched and there + session.host >= session.parked > 0 and self.loaded(session)

    def fetch_s(self, session: Live, now: float) -> float:
        """Seconds until an arrived turn may be admitted: its cache comes back from the host, and, on a stream of its
        own, its compaction is made.
        """
        delay = 0.0
        there = session.blocks if session in self.pool.idle else 0
        missing = session.parked - there
        if 0 < missing <= session.host and self.loaded(session):
            start = max(now, self.link_free_s)
            self.link_free_s = start + missing * self.block_s
            self.reload_s += missing * self.block_s
            session.fetched, delay = True, self.link_free_s - now
            self.host.guests.move_to_end(session)
            if there:  # it is wanted soon
                session.since = now
                self.pool.idle.move_to_end(session)
        if self.beside:
            delay += (session.plan.pay if self.complete(session) else session.plan.repay)[session.turn]
        return delay

    def found(self, session: Live) -> tuple[int, bool]:
        """(rows that need not be fed again, whether that is all that was kept) for the turn `session` stands at."""
        plan, turn = session.plan, session.turn
        first = plan.shared if self.loaded(session) else 0
        again = session.made > 0 or session.at > 0  # preempted inside this turn: its own rows are kept too
        kept = plan.after[turn] + session.made - 1 if again else plan.base[turn]
        whole = self.complete(session)
        if not whole:
            if not plan.divisible or session not in self.pool.idle:
                return first, False
            own = session.blocks - plan.extra[max(0, turn - 1)]
            kept = min(kept, plan.shared + max(0, own) * BLOCK_TOKENS)
        elif again:
            kept = min(kept, plan.shared + session.blocks * BLOCK_TOKENS)
        if plan.divisible and plan.coarse:
            kept -= kept % plan.coarse
        return max(first, kept), whole

    def prefill(self, session: Live) -> Prefill:
        """What must be fed now: the new tokens, or all that is not there."""
        plan, turn, made = session.plan, session.turn, session.made
        if session.swapped and session.host:
            end = plan.after[turn] + made
            return Prefill(end - 1, 1, end, plan.blocks(turn, end), 0, session.host * self.block_s, True)
        start, whole = self.found(session)
        pay = 0.0 if self.beside else plan.pay[turn] if whole else plan.repay[turn]
        if whole and start == plan.base[turn] and not made:
            return Prefill(start, plan.feed[turn], plan.peak[turn], plan.need[turn], 0, pay, True)
        lent = 0 if self.loaded(session) else plan.shared // BLOCK_TOKENS
        need = max(plan.need_gone[turn], plan.blocks(turn, plan.after[turn] + made)) + lent
        return Prefill(start, plan.raw[turn] - start + made, plan.top[turn] + made, need, lent, pay, whole)
