"""`Replica`: iteration-level continuous batching of one model instance, as one SimPy process.

Each step gives every decoding sequence one token, then the rest of the token budget to chunked prefills, first come,
first served; a request is admitted when the blocks of its whole prefill are there. When a decode step finds no
block, idle sessions are evicted, then the youngest running request is preempted and comes back later (`residency`).
Stretches of decode steps in which nothing changes are one event with closed-form sums; `jump=False` steps through them
instead, with the same events. Compaction inline lengthens the step that ends the prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from .blocks import BlockPool
from .cost import CostModel
from .decodes import DecodeSet
from .deployment import BLOCK_TOKENS, Deployment
from .live import Live
from .meter import Meter, Snapshot
from .residency import Residency

FAILED = "failed"


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
        self.cache = Residency(deployment, cost)
        self.margin = int(deployment.watermark * self.cache.total)
        self.limit = 1 << 60 if jump else 1
        self.checking, self.log = check, log
        self.steps = self.preemptions = self.batch_max = 0
        self.load = 0  # rows of the sessions that live here, for the router
        self.meter = Meter()
        self.sleeping: simpy.Event | None = None
        self.repaired: simpy.Event | None = None
        self.empty()
        self.process = env.process(self.run())

    def empty(self) -> None:
        """No request, no row."""
        self.arrived: deque[Live] = deque()  # not looked at yet
        self.waiting: deque[Live] = deque()
        self.fetching: dict[Live, None] = {}  # on their way from host memory, or compacted beside the batch
        self.running: dict[Live, None] = {}  # in order of admission
        self.prefilling: dict[Live, None] = {}
        self.decodes = DecodeSet(self.cost, self.limit)
        self.stretched: tuple[float, int] | None = None  # (start, steps) of a stretch that an arrival may cut short

    @property
    def pool(self) -> BlockPool:
        """The blocks on its GPUs."""
        return self.cache.pool

    # -- the outside ---------------------------------------------------------------------------------------

    def submit(self, session: Live) -> None:
        """A request arrives. It is looked at when the current step ends."""
        self.arrived.append(session)
        self.wake()

    def wake(self) -> None:
        """There is something to look at: end the sleep, or the stretch after its current step."""
        if self.sleeping is not None:
            self.sleeping.succeed()
            self.sleeping = None
        elif self.stretched is not None:
            self.stretched = None
            self.process.interrupt()

    def fail(self) -> list[Live]:
        """The replica breaks down and loses everything. Returns the sessions with an open turn, which starts over."""
        self.account()
        pending = [*self.running, *self.waiting, *self.fetching, *self.arrived]
        self.cache.lose()  # before the sessions forget what they had in host memory
        for session in pending:
            session.reset()
        self.empty()
        self.sleeping, self.repaired = None, self.env.event()
        self.process.interrupt(FAILED)
        return pending

    def repair(self) -> None:
        """It is back, with nothing in its memory; what arrived meanwhile is looked at."""
        if self.repaired is not None:
            self.repaired.succeed()
            self.repaired = None

    def snapshot(self) -> Snapshot:
        """What runs, waits and is held now, exact inside a stretch too."""
        pool, decodes, growth = self.pool, self.decodes, 0
        if self.stretched is not None:
            start, steps = self.stretched
            passed = self.env.now - start
            ended = decodes.steps_until(passed, steps)
            growth = decodes.growth(ended if decodes.span_s(ended) <= passed else ended - 1)
        waiting = len(self.waiting) + len(self.arrived) + len(self.fetching)
        return Snapshot.of(pool, len(self.running), waiting, growth)

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Step after step, for ever; asleep while there is no request, and while it is broken."""
        while True:
            try:
                yield from self.serve()
            except simpy.Interrupt as interrupt:
                if interrupt.cause != FAILED:
                    raise
                if self.repaired is not None:
                    yield self.repaired
                self.account()

    def serve(self) -> Generator[simpy.Event, Any, None]:
        """Step after step, until it fails."""
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
                self.advance(1, self.decodes.due())
                self.end_chunks(chunks)
            elif self.decodes.count:
                steps = self.decodes.stretch(self.pool.available)
                start, span = env.now, self.decodes.span_s(steps)
                self.stretched = start, steps
                try:
                    yield env.timeout(span)
                except simpy.Interrupt as interrupt:
                    if interrupt.cause == FAILED:
                        raise
                    passed = env.now - start
                    steps = self.decodes.steps_until(passed, steps)
                    span = self.decodes.span_s(steps)
                    yield env.timeout(max(0.0, span - passed))
                self.stretched = None
                self.account()
                self.meter.decoded(self.cost, self.decodes.count, steps, span)
                growth = self.decodes.growth(steps)
                self.meter.grew(growth, self.pool, span)
                self.advance(steps, growth)
            if self.checking:
                self.pool.check(sum(self.decodes.held(session) for session in self.running))
                self.cache.host.check()

    # -- one step ------------------------------------------------------------------------------------------

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
        decodes = self.decodes
        step = self.cost.step_s(decodes.count, decodes.rows, len(chunks), tokens, pairs, ending)
        plain = decodes.span_s(1) if decodes.count else 0.0
        if plain:
            self.meter.decoded(self.cost, decodes.count, 1, plain)
        self.meter.prefilled(step - plain, pay)
        return step + pay

    def account(self) -> None:
        """Let the meter look at the time that has passed."""
        self.cache.expire(self.env.now)
        self.meter.account(self.env.now, len(self.running), self.pool)

    def note(self, event: str, session: Live) -> None:
        """Write the event to the log, if there is one."""
        if self.log is not None:
            self.log.append((event, session.agent, session.turn, session.made, len(self.running), self.env.now))
