"""`Fleet`: replicas behind a router, and the agents that send them turns.

A session stays with one replica while its cache is there; a new one, and one whose cache is gone, goes to the replica
that holds the fewest rows.
Closed workloads start in the stationary state: agents mid-session by the length-biased law, the caches of the most
recently active resident. The same seed gives every policy and every fleet size the same agents.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

from ..errors import UserError
from .cost import CostModel
from .deployment import Deployment
from .live import Live
from .meter import SUMS
from .positions import Positions
from .replica import Replica
from .session import SessionPlan
from .workload import Workload

MOST_PRESENT = 200_000  # sessions at once: memory and minutes of a simulation

Turn = tuple[float, float, float, float, int, bool]  # arrival, TTFT, TPOT (NaN for one token), E2E, output, cache hit


class Fleet:
    """One run's machines and agents. `turns` collects what happened to every finished turn."""

    def __init__(
        self,
        workload: Workload,
        positions: Positions,
        plan_of: Callable[[int], SessionPlan],
        deployment: Deployment,
        cost: CostModel,
        replicas: int,
        seed: int,
        **options: Any,
    ) -> None:
        self.env = simpy.Environment()
        self.workload, self.positions, self.plan_of, self.seed = workload, positions, plan_of, seed
        self.replicas = [
            Replica(self.env, deployment, cost, self.done, lost=self.reroute, **options) for _ in range(replicas)
        ]
        self.turns: list[Turn] = []
        self.rejected: list[float] = []
        self.live: set[Live] = set()
        self.draws: dict[int, random.Random] = {}
        self.agents = 0
        self.before: dict[str, float] = {}
        self.populate()

    # -- the start -----------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Agents in the stationary state; or, at the recorded starts, sessions resampled from the log."""
        workload, rng = self.workload, np.random.default_rng([self.seed, 1])
        if workload.kind == "recorded":
            usable = self.positions.usable
            for i, session in zip(usable, rng.choice(usable, len(usable)), strict=True):
                self.after(workload.sessions[i].start_s or 0.0, self.begin, int(session))
            return
        expected = workload.agents or (workload.rate or 0.0) * self.positions.mean_session_s
        if expected > MOST_PRESENT:
            raise UserError(
                f"workload {workload.name}: {expected:,.0f} sessions at once; up to {MOST_PRESENT:,} are simulated: "
                "plan a share of the load and scale the answer"
            )
        present = workload.agents or int(rng.poisson(expected))
        resident: list[tuple[float, float, Live]] = []
        for session, turn, until, since, age in self.positions.draw(rng, present):
            agent = self.agents
            self.agents += 1
            if turn + 1 >= self.positions.turns[session]:
                self.after(until, self.renew, agent)
                continue
            live = Live(self.plan_of(session), agent, turn + 1)
            resident.append((since, age, live))
            self.after(until, self.submit, live)
        self.house([(age, live) for _, age, live in resident])
        self.furnish([live for _, _, live in sorted(resident, key=lambda item: item[0])])
        if workload.rate:
            self.arrivals = random.Random(f"{self.seed}/arrivals")
            self.after(self.arrivals.expovariate(workload.rate), self.arrive, workload.rate)

    def house(self, present: list[tuple[float, Live]]) -> None:
        """Give every session the replica that held the fewest rows when it began, oldest first.

        Rows are taken to have grown evenly since each session's start. Balancing today's rows instead would begin
        with a fleet better balanced than any that has been running.
        """
        present = sorted(present, key=lambda item: -item[0])
        ages = np.array([age for age, _ in present])
        start = np.array([live.plan.after[live.plan.begin] for _, live in present], dtype=float)
        rows = np.array([self.counted(live) for _, live in present], dtype=float)
        homes = np.zeros(len(present), dtype=int)
        for i, (age, live) in enumerate(present):
            then = start[:i] + (rows[:i] - start[:i]) * (1 - age / np.maximum(ages[:i], 1e-9))
            loads = np.bincount(homes[:i], weights=then, minlength=len(self.replicas))
            homes[i] = live.replica = int(loads.argmin())
            self.replicas[live.replica].load += int(rows[i])
            self.live.add(live)

    def furnish(self, resident: list[Live]) -> None:
        """Fill each pool with the caches of its agents, the most recently active first, until one does not fit."""
        full: set[int] = set()
        stay: list[Live] = []
        for live in resident:
            replica = self.replicas[live.replica]
            plan, turn = live.plan, live.turn - 1
            shared = plan.shared // 16
            need = plan.blocks(turn, plan.rows(turn))
            lent = shared if shared and 0 not in replica.pool.shared else 0
            if live.replica in full or need + lent > replica.pool.free:
                full.add(live.replica)
                continue
            replica.pool.take(need + lent)
            if lent:
                replica.pool.share(0, lent)
            live.blocks = need
            stay.append(live)
        for live in reversed(stay):
            self.replicas[live.replica].pool.park(live)

    # -- the life of a session -----------------------------------------------------------------------------

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action` in `delay` seconds: an event with a callback, no process."""
        event = self.env.timeout(delay)
        event.callbacks = [lambda _: action(*args)]

    def arrive(self, rate: float) -> None:
        """A session of an open workload, and the next arrival."""
        agent = self.agents
        self.agents += 1
        self.after(self.arrivals.expovariate(rate), self.arrive, rate)
        self.renew(agent)

    def renew(self, agent: int) -> None:
        """The agent draws a session and begins it at once."""
        if agent not in self.draws:
            self.draws[agent] = random.Random(f"{self.seed}/{agent}")
        self.start(self.draws[agent].choice(self.positions.usable), agent)

    def begin(self, session: int) -> None:
        """A recorded session begins."""
        agent = self.agents
        self.agents += 1
        self.start(session, agent)

    def start(self, session: int, agent: int) -> None:
        """Route a new session and send its first turn."""
        plan = self.plan_of(session)
        live = Live(plan, agent, plan.begin)
        self.settle(live, plan.after[plan.begin])
        self.submit(live)

    def reroute(self, live: Live) -> bool:
        """A turn came whose cache is gone: nothing holds it here, so another replica may be better. Once per turn."""
        if live.moved or live.turn == live.plan.begin:
            return False
        rows = self.counted(live)
        loads = [replica.load for replica in self.replicas]
        loads[live.replica] -= rows
        best = loads.index(min(loads))
        if loads[best] == loads[live.replica]:
            return False
        self.replicas[live.replica].load -= rows
        self.replicas[best].load += rows
        live.replica, live.moved = best, True
        self.replicas[best].submit(live)
        return True

    def settle(self, live: Live, rows: int) -> None:
        """Choose the replica with the fewest rows."""
        loads = [replica.load for replica in self.replicas]
        live.replica = loads.index(min(loads))
        self.replicas[live.replica].load += rows
        self.live.add(live)

    @staticmethod
    def counted(live: Live) -> int:
        """The rows of a session that its replica's load includes while a turn is open."""
        plan = live.plan
        return plan.after[plan.begin] if live.turn == plan.begin else plan.rows(live.turn - 1)

    def submit(self, live: Live) -> None:
        """A turn arrives at its replica."""
        live.arrival, live.first, live.made = self.env.now, -1.0, 0
        live.hit, live.moved, live.pending = True, False, True
        self.replicas[live.replica].submit(live)

    def done(self, live: Live, rejected: bool) -> None:
        """A turn is over: book it, then wait for the tool, or end the session."""
        now, plan, turn = self.env.now, live.plan, live.turn
        replica = self.replicas[live.replica]
        live.pending = False
        if rejected:
            self.rejected.append(live.arrival)
        else:
            out = plan.out[turn]
            tpot = (now - live.first) / (out - 1) if out > 1 else float("nan")
            self.turns.append((live.arrival, live.first - live.arrival, tpot, now - live.arrival, out, live.hit))
        if rejected or turn + 1 == plan.turns:
            replica.load -= self.counted(live)
            self.live.discard(live)
            if self.workload.kind == "closed":
                self.after(plan.wait[turn], self.renew, live.agent) if rejected else self.renew(live.agent)
            return
        replica.load += plan.rows(turn) - self.counted(live)
        live.turn += 1
        self.after(plan.wait[turn], self.submit, live)

    # -- the books -----------------------------------------------------------------------------------------

    def begin_measuring(self) -> None:
        """The warm-up is over: `measured` counts from here, and so do the replicas' largest batches."""
        self.before = self.sums()
        for replica in self.replicas:
            replica.batch_max = len(replica.running)

    def measured(self) -> dict[str, float]:
        """The meters' sums over all replicas, preemptions and evictions since `begin_measuring` (or the start).

        What the time went to is booked a step or a stretch at a time, so those shares are exact to one of them.
        """
        return {name: value - self.before.get(name, 0.0) for name, value in self.sums().items()}

    def sums(self) -> dict[str, float]:
        """The same since the start."""
        for replica in self.replicas:
            replica.account()
        found: dict[str, float] = {name: sum(getattr(r.meter, name) for r in self.replicas) for name in SUMS}
        found["preemptions"] = sum(r.preemptions for r in self.replicas)
        found["evictions"] = sum(r.pool.evictions for r in self.replicas)
        return found
