"""`Scheduler`: which requests of a replica wait and run, and what its next step feeds.

Each step gives every decoding sequence one token, then the rest of the token budget to chunked prefills, first come,
first served; a request is admitted when the blocks of its whole prefill are there. When a decode step finds no
block, idle sessions are evicted, then the youngest running request is preempted and comes back later (`residency`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import simpy

from .blocks import BlockPool
from .cost import CostModel
from .decodes import DecodeSet
from .deployment import BLOCK_TOKENS, Deployment
from .live import Live
from .meter import Meter
from .residency import Residency


class Scheduler(ABC):
    """The requests of one model instance. Time passes in `Replica`, which calls `schedule` before and the others after
    each step; `wake` is called when there is something new to look at.
    """

    def __init__(
        self,
        env: simpy.Environment,
        deployment: Deployment,
        cost: CostModel,
        done: Callable[[Live, bool], None],
        *,
        lost: Callable[[Live], bool] = lambda _: False,
        jump: bool = True,
        check: bool = False,
        log: list[tuple[Any, ...]] | None = None,
    ) -> None:
        self.env, self.cost, self.done, self.lost = env, cost, done, lost
        self.budget, self.cap = deployment.token_budget, deployment.max_sequences
        self.cache = Residency(deployment, cost)
        self.margin = int(deployment.watermark * self.cache.total)
        self.limit = 1 << 60 if jump else 1
        self.checking, self.log = check, log
        self.steps = self.preemptions = self.batch_max = 0
        self.load = 0  # rows of the sessions that live here, for the router
        self.meter = Meter()
        self.empty()

    def empty(self) -> None:
        """No request, no row."""
        self.arrived: deque[Live] = deque()  # not looked at yet
        self.waiting: deque[Live] = deque()
        self.fetching: dict[Live, None] = {}  # on their way from host memory, or compacted beside the batch
        self.running: dict[Live, None] = {}  # in order of admission
        self.prefilling: dict[Live, None] = {}
        self.decodes = DecodeSet(self.cost, self.limit)

    @property
    def pool(self) -> BlockPool:
        """The blocks on its GPUs."""
        return self.cache.pool

    @abstractmethod
    def wake(self) -> None:
        """There is something to look at."""

    def schedule(self) -> list[tuple[Live, int]]:
        """The prefill chunks of the next step. Preempts until every decode has its block; admits what fits."""
        self.cache.expire(self.env.now)
        while self.arrived:
            session = self.arrived.popleft()
            if self.cache.here(session) or not self.lost(session):
                self.receive(session)
        preempted = False
        while self.decodes.count and self.decodes.due() > self.pool.available:
            self.preempt(next(reversed(self.running)))
            preempted = True
        left = self.budget - self.decodes.count
        chunks: list[tuple[Live, int]] = []
        for session in self.prefilling:
            if left <= 0:
                return chunks
            size = min(session.left, left)
            left -= size
            chunks.append((session, size))
        while self.waiting and not preempted and left > 0 and len(self.running) < self.cap:
            session = self.waiting[0]
            if session.plan.size[session.turn] + session.plan.shared // BLOCK_TOKENS > self.pool.total:
                self.waiting.popleft()
                self.note("reject", session)
                self.cache.drop(session)
                self.done(session, True)
                continue
            if not self.admit(session):
                if not self.running:
                    raise RuntimeError("an empty replica cannot admit a request that fits its pool")
                break
            self.waiting.popleft()
            size = min(session.left, left)
            left -= size
            chunks.append((session, size))
        return chunks

    def receive(self, session: Live) -> None:
        """Line a request up, once what it needs from host memory, or a compaction beside the batch, is there."""
        session.at = 0.0
        delay = self.cache.fetch_s(session, self.env.now)
        if delay <= 0:
            self.waiting.append(session)
            return
        self.fetching[session] = None
        self.env.timeout(delay).callbacks = [lambda _: self.fetched(session)]

    def fetched(self, session: Live) -> None:
        """Now it may wait like the others (unless the replica failed meanwhile)."""
        if session in self.fetching:
            del self.fetching[session]
            self.waiting.append(session)
            self.wake()

    def admit(self, session: Live) -> bool:
        """Start a request if its prefill's blocks are there: of the new tokens, or of all when its cache is gone."""
        pool, plan, turn = self.pool, session.plan, session.turn
        start, feed, end, need, lent, pay, whole = self.cache.prefill(session)
        growth = self.decodes.due()  # the decodes of this very step come first
        if need > pool.room(plan.group) - growth - (self.margin if self.running else 0):
            return False
        held = session.blocks if pool.unpark(session) else 0
        pool.enter(session)
        if need > held:
            pool.take(need - held)
        else:
            pool.give(held - need)
        self.cache.forget_copy(session)
        session.blocks, session.lent, session.pay = need, lent, pay
        session.left, session.at, session.slope = feed, float(start), max(0, end - start) / feed
        session.hit = session.hit and (whole or turn == plan.begin)
        self.meter.feeds(feed, feed - plan.feed[turn] if turn > plan.begin else 0)
        self.running[session] = None
        self.prefilling[session] = None
        self.batch_max = max(self.batch_max, len(self.running))
        self.note("admit", session)
        return True

    def end_chunks(self, chunks: list[tuple[Live, int]]) -> None:
        """Book the chunks; a finished prefill gives back what compaction freed and has its next token."""
        for session, size in chunks:
            session.left -= size
            session.at += size * session.slope
            if session.left:
                continue
            del self.prefilling[session]
            if session.lent:
                if not self.pool.share(session.plan.group, session.lent):
                    self.pool.give(session.lent)
                session.blocks -= session.lent
                session.lent = 0
            rows = session.plan.after[session.turn] + session.made
            kept = session.plan.blocks(session.turn, rows)
            self.pool.give(session.blocks - kept)
            session.blocks = kept
            session.made += 1
            if session.first < 0:
                session.first = self.env.now
            self.note("token", session)
            left = session.plan.out[session.turn] - session.made
            if left <= 0:
                self.complete(session)
                continue
            self.decodes.add(session, rows, left)

    def advance(self, steps: int, growth: int) -> None:
        """`steps` decode steps have passed: every decoding sequence has that many more tokens and rows, and all have
        taken `growth` blocks.
        """
        self.steps += steps
        self.pool.take(growth)
        self.decodes.advance(steps)
        for session in self.decodes.complete():
            self.complete(session)

    def complete(self, session: Live) -> None:
        """The turn is over: its rows stay for the next one, or go with the session."""
        del self.running[session]
        self.pool.leave(session, self.env.now)
        session.made = session.plan.out[session.turn]
        self.note("done", session)
        if session.turn + 1 == session.plan.turns:
            self.cache.drop(session)
        else:
            self.cache.keep(session, self.env.now)
        self.done(session, False)

    def preempt(self, session: Live) -> None:
        """Free a running request; it keeps its tokens, and is admitted again before those that wait.

        What it held is copied to the host, or can be found again until others take it, or is gone.
        """
        decoding = session.finish >= 0
        if decoding:
            session.made = session.plan.out[session.turn] - (session.finish - self.decodes.counter)
            self.decodes.remove(session)
        self.prefilling.pop(session, None)
        del self.running[session]
        self.pool.leave(session, self.env.now)
        if not (decoding and self.cache.swap_out(session)):
            session.hit = False
            self.cache.leave(session, decoding, self.env.now)
        session.lent = 0
        self.preemptions += 1
        self.waiting.appendleft(session)
        self.note("preempt", session)

    def note(self, event: str, session: Live) -> None:
        """Write the event to the log, if there is one."""
        if self.log is not None:
            self.log.append((event, session.agent, session.turn, session.made, len(self.running), self.env.now))
