"""`Replica`: iteration-level continuous batching of one model instance, as one SimPy process.

Each step gives every decoding sequence one token, then the rest of the token budget to chunked prefills, first come,
first served; a request is admitted when the blocks of its whole prefill are there. When a decode step finds no
block, idle sessions are evicted, then the youngest running request is preempted and recomputed later. Stretches of
decode steps in which nothing changes are one event with closed-form sums; `jump=False` steps through them instead,
with the same events. Compaction runs inline: it lengthens the step that ends the prefill.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from .blocks import BlockPool
from .cost import CostModel
from .deployment import BLOCK_TOKENS, Deployment
from .live import Live
from .meter import Meter

MASK = BLOCK_TOKENS - 1


class Replica:
    """One model instance. `done(session, rejected)` is called at the end of every turn, at the simulated time;
    `lost(session)` when a turn arrives whose cache is gone: True when it was sent to another replica.
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
        self.pool = BlockPool(deployment.blocks())
        self.margin = int(deployment.watermark * self.pool.total)
        self.limit = 1 << 60 if jump else 1
        self.checking, self.log = check, log
        self.arrived: deque[Live] = deque()  # not looked at yet
        self.waiting: deque[Live] = deque()
        self.running: dict[Live, None] = {}  # in order of admission
        self.prefilling: dict[Live, None] = {}
        self.heap: list[tuple[int, int, Live]] = []
        self.bins = [0] * BLOCK_TOKENS  # decoding sequences by (own rows − counter) mod block
        self.decodes, self.rows, self.counter, self.serial = 0, 0, 0, 0
        self.steps = self.preemptions = self.batch_max = 0
        self.load = 0  # rows of the sessions that live here, for the router
        self.meter = Meter()
        self.open = False
        self.sleeping: simpy.Event | None = None
        self.process = env.process(self.run())

    # -- the outside ---------------------------------------------------------------------------------------

    def submit(self, session: Live) -> None:
        """A request arrives. It is looked at when the current step ends."""
        self.arrived.append(session)
        if self.sleeping is not None:
            self.sleeping.succeed()
            self.sleeping = None
        elif self.open:
            self.open = False
            self.process.interrupt()

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Step after step, for ever; asleep while there is no request."""
        env = self.env
        while True:
            if not self.running and not self.waiting and not self.arrived:
                self.account()
                self.sleeping = env.event()
                yield self.sleeping
                self.account()
            chunks = self.schedule()
            if chunks:
                span = self.mixed_s(chunks)
                yield env.timeout(span)
                self.account()
                self.advance(1)
                self.end_chunks(chunks)
            elif self.decodes:
                steps = self.stretch()
                start, span = env.now, self.span_s(steps)
                self.open = True
                try:
                    yield env.timeout(span)
                except simpy.Interrupt:
                    passed = env.now - start
                    steps = self.steps_until(passed, steps)
                    yield env.timeout(max(0.0, self.span_s(steps) - passed))
                self.open = False
                self.account()
                self.meter.decoded(self.cost, self.decodes, steps, self.span_s(steps))
                self.advance(steps)
            if self.checking:
                self.pool.check(sum(self.held(session) for session in self.running))

    # -- one step ------------------------------------------------------------------------------------------

    def schedule(self) -> list[tuple[Live, int]]:
        """The prefill chunks of the next step. Preempts until every decode has its block; admits what fits."""
        while self.arrived:
            session = self.arrived.popleft()
            if session in self.pool.idle or not self.lost(session):
                self.waiting.append(session)
        preempted = False
        while self.decodes and self.bins[-self.counter & MASK] > self.pool.available:
            self.preempt(next(reversed(self.running)))
            preempted = True
        left = self.budget - self.decodes
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
                self.drop(session)
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

    def admit(self, session: Live) -> bool:
        """Start a request if its prefill's blocks are there: of the new tokens, or of all when its cache is gone."""
        pool, plan, turn = self.pool, session.plan, session.turn
        here = session in pool.idle
        loaded = not plan.shared or 0 in pool.shared
        if here:
            lent, held, need = 0, session.blocks, plan.need[turn]
            start, feed, end, pay = plan.base[turn], plan.feed[turn], plan.peak[turn], plan.pay[turn]
        else:
            lent, held = 0 if loaded else plan.shared // BLOCK_TOKENS, 0
            need = max(plan.need_gone[turn], session.plan.blocks(session.turn, plan.after[turn] + session.made)) + lent
            start = plan.shared if loaded else 0
            feed, end, pay = plan.raw[turn] - start + session.made, plan.top[turn] + session.made, plan.repay[turn]
        growth = self.bins[-self.counter & MASK]  # the decodes of this very step come first
        if need > pool.available - growth - (self.margin if self.running else 0):
            return False
        pool.unpark(session)
        if need > held:
            pool.take(need - held)
        else:
            pool.give(held - need)
        session.blocks, session.lent, session.pay = need, lent, pay
        session.left, session.at, session.slope = feed, float(start), max(0, end - start) / feed
        session.hit = session.hit and (here or turn == plan.begin)
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
                if not self.pool.share(0, session.lent):
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
            session.finish = self.counter + left
            self.serial += 1
            heapq.heappush(self.heap, (session.finish, self.serial, session))
            self.decodes += 1
            self.rows += rows
            self.bins[(rows - self.counter) & MASK] += 1

    def advance(self, steps: int) -> None:
        """`steps` decode steps have passed: every decoding sequence has that many more tokens and rows."""
        self.steps += steps
        if self.decodes:
            self.pool.take(self.growth(steps))
            self.rows += self.decodes * steps
        self.counter += steps
        heap = self.heap
        while heap and heap[0][0] <= self.counter:
            finish, _, session = heapq.heappop(heap)
            if session.finish == finish:
                self.leave(session)
                self.complete(session)

    def complete(self, session: Live) -> None:
        """The turn is over: its rows stay for the next one, or go with the session."""
        del self.running[session]
        session.made = session.plan.out[session.turn]
        self.note("done", session)
        if session.turn + 1 == session.plan.turns:
            self.drop(session)
        else:
            self.pool.park(session)
        self.done(session, False)

    def drop(self, session: Live) -> None:
        """Free whatever the session holds."""
        if session in self.pool.idle:
            self.pool.unpark(session)
        self.pool.give(session.blocks)
        session.blocks = 0

    def preempt(self, session: Live) -> None:
        """Free a running request; it keeps its tokens, and its whole context is prefilled when its turn comes again."""
        if session.finish >= 0:
            session.made = session.plan.out[session.turn] - (session.finish - self.counter)
            self.leave(session)
        self.prefilling.pop(session, None)
        del self.running[session]
        session.lent = 0
        session.hit = False
        self.drop(session)
        self.preemptions += 1
        self.waiting.appendleft(session)
        self.note("preempt", session)

    def leave(self, session: Live) -> None:
        """Out of the decode set, with the blocks it has grown to."""
        rows = session.plan.rows(session.turn) - (session.finish - self.counter)
        self.decodes -= 1
        self.rows -= rows
        self.bins[(rows - self.counter) & MASK] -= 1
        session.blocks = session.plan.blocks(session.turn, rows)
        session.finish = -1

    # -- blocks --------------------------------------------------------------------------------------------

    def held(self, session: Live) -> int:
        """Blocks of a running session now, for the conservation check."""
        if session.finish < 0:
            return session.blocks
        return session.plan.blocks(session.turn, session.plan.rows(session.turn) - (session.finish - self.counter))

    def growth(self, steps: int) -> int:
        """Blocks that `steps` decode steps take: one per sequence and 16 steps, at the step its residue says."""
        cycles, rest = divmod(steps, BLOCK_TOKENS)
        bins, counter = self.bins, self.counter
        return cycles * self.decodes + sum(bins[-(counter + i) & MASK] for i in range(rest))

    # -- stretches -----------------------------------------------------------------------------------------

    def stretch(self) -> int:
        """Decode steps until a sequence ends, blocks run out, or the attention term leaves its floor."""
        heap = self.heap
        while heap[0][2].finish != heap[0][0]:
            heapq.heappop(heap)
        steps = min(heap[0][0] - self.counter, self.limit)
        available = self.pool.available
        if self.decodes * (steps // BLOCK_TOKENS + 1) > available:
            cycles = available // self.decodes
            left, room = available - cycles * self.decodes, cycles * BLOCK_TOKENS
            while room < steps and self.bins[-(self.counter + room) & MASK] <= left:
                left -= self.bins[-(self.counter + room) & MASK]
                room += 1
            steps = min(steps, room)
        return min(steps, self.cost.steps_on_floor(self.decodes, self.rows))

    def span_s(self, steps: int) -> float:
        """Seconds of `steps` decode steps from here."""
        return self.cost.stretch_s(self.decodes, self.rows, steps)

    def steps_until(self, passed: float, most: int) -> int:
        """The fewest steps (1…most) whose end is not before `passed` seconds from the start of the stretch."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.span_s(middle) >= passed:
                high = middle
            else:
                low = middle + 1
        return low

    # -- the books -----------------------------------------------------------------------------------------

    def mixed_s(self, chunks: list[tuple[Live, int]]) -> float:
        """Seconds of a step with prefill chunks, the compactions that end in it included."""
        tokens = ending = 0
        pairs = pay = 0.0
        for session, size in chunks:
            tokens += size
            pairs += size * (session.at + session.slope * size / 2)
            if size == session.left:
                ending += 1
                pay += session.pay
        step = self.cost.step_s(self.decodes, self.rows, len(chunks), tokens, pairs, ending)
        plain = self.span_s(1) if self.decodes else 0.0
        if plain:
            self.meter.decoded(self.cost, self.decodes, 1, plain)
        self.meter.prefilled(step - plain, pay)
        return step + pay

    def account(self) -> None:
        """Let the meter look at the time that has passed."""
        self.meter.account(self.env.now, len(self.running), self.pool)

    def note(self, event: str, session: Live) -> None:
        """Write the event to the log, if there is one."""
        if self.log is not None:
            self.log.append((event, session.agent, session.turn, session.made, len(self.running), self.env.now))
