"""`Replica`: iteration-level continuous batching of one model instance, as one SimPy process.

What a step does is `scheduling`'s; here it takes time. Stretches of decode steps in which nothing changes are one event
with closed-form sums; `jump=False` steps through them instead, with the same events. Compaction inline lengthens the
step that ends the prefill.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Any

import simpy

from .live import Live
from .meter import Snapshot
from .scheduling import Scheduler

FAILED = "failed"


class Replica(Scheduler):
    """One model instance, made as its `Scheduler` is. `done(session, rejected)` is called at the end of every turn, at
    the simulated time; `lost(session)` when a turn arrives whose cache is gone: True when it was sent elsewhere.
    """

    def __init__(self, env: simpy.Environment, *args: Any, **options: Any) -> None:
        super().__init__(env, *args, **options)
        self.sleeping: simpy.Event | None = None
        self.repaired: simpy.Event | None = None
        self.process = env.process(self.run())

    def empty(self) -> None:
        """No request, no row, no step."""
        super().empty()
        self.stretched: tuple[float, int] | None = None  # (start, steps) of a stretch that an arrival may cut short
        self.cut = False  # and one has

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
        elif self.stretched is not None and not self.cut:
            self.cut = True
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

    def catch_up(self) -> None:
        """Book the steps of the current stretch that are over: what is held is then what stepping would show."""
        if self.stretched is None:
            return
        start, steps = self.stretched
        passed = self.env.now - start
        ended = self.decodes.steps_until(passed, steps)
        if self.decodes.span_s(ended) > passed:
            ended -= 1
        if 0 < ended < steps:  # the last step is the process's own to book
            span = self.decodes.span_s(ended)
            self.stretched = start + span, steps - ended
            self.book(start + span, ended, span)

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
                steps = self.before_expiry(self.decodes.stretch(self.pool.available))
                self.stretched, self.cut = (env.now, steps), False
                span = self.decodes.span_s(steps)
                try:
                    yield env.timeout(span)
                except simpy.Interrupt as interrupt:
                    if interrupt.cause == FAILED:
                        raise
                    start, steps = self.stretched
                    passed = env.now - start
                    steps = self.decodes.steps_until(passed, steps)
                    self.stretched = start, steps
                    yield env.timeout(max(0.0, self.decodes.span_s(steps) - passed))
                _, steps = self.stretched
                self.stretched = None
                self.book(env.now, steps, self.decodes.span_s(steps))
            if self.checking:
                self.pool.check(sum(self.decodes.held(session) for session in self.running))
                self.cache.host.check()

    def before_expiry(self, steps: int) -> int:
        """Of `steps`, those that end before the next idle cache's time to live is over: the step in which it leaves is
        a stretch of its own, since blocks that are taken before it leaves come from elsewhere.
        """
        left = self.cache.next_expiry_s() - self.env.now
        if left == inf:
            return steps
        within = self.decodes.steps_until(left, steps)
        return max(1, within - 1) if self.decodes.span_s(within) >= left else steps

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
        self._account(self.env.now)

    def book(self, now: float, steps: int, span: float) -> None:
        """`steps` decode steps of `span` seconds in all are over, at the moment `now`."""
        self._account(now)
        growth = self.decodes.growth(steps)
        self.meter.decoded(self.cost, self.decodes.count, steps, span)
        self.meter.grew(growth, self.pool, span)
        self.advance(steps, growth)

    def _account(self, now: float) -> None:
        self.cache.expire(now)
        self.meter.account(now, len(self.running), self.pool)
