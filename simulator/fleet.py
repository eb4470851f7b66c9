"""`Fleet`: replicas behind a router, and the agents that send them turns.

Closed workloads, and open ones, start in the stationary state: agents mid-session, the caches of the most recently
active resident. The same seed gives every policy, every router and every fleet size the same agents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import simpy

from ..errors import UserError
from .arrivals import Renewal, neighbour, pick, recorded
from .cost import CostModel
from .deployment import Deployment
from .furnishing import furnish, house
from .live import Live
from .meter import SUMS
from .positions import Place, Positions
from .replica import Replica
from .routers import counted, find_router
from .session import SessionPlan
from .turns import Turns
from .workload import Workload

MOST_PRESENT = 200_000  # sessions at once: memory and minutes of a simulation


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
        *,
        router: str = "affinity",
        **options: Any,
    ) -> None:
        self.env = simpy.Environment()
        self.workload, self.positions, self.plan_of, self.seed = workload, positions, plan_of, seed
        self.router = find_router(router)
        self.replicas = [
            Replica(self.env, deployment, cost, self.done, lost=self.reroute, **options) for _ in range(replicas)
        ]
        self.up = dict(enumerate(self.replicas))  # those that work, in order
        self.turns = Turns()
        self.rejected: list[float] = []
        self.live: set[Live] = set()
        self.left: dict[int, dict[int, Live]] = {}  # agent → replica → what its session has left there
        self.stranded: list[Live] = []  # turns that wait for a replica to come back
        self.agents = 0
        self.draws: dict[int, int] = {}  # agent → sessions that it has begun
        self.before: dict[str, float] = {}
        self.arrivals: Iterator[float] = iter(())
        self.populate()

    # -- the start -----------------------------------------------------------------------------------------

    def populate(self) -> None:
        """Agents in the stationary state, and sessions that arrive; or sessions at the recorded starts."""
        workload, rng = self.workload, np.random.default_rng([self.seed, 1])
        if workload.kind == "recorded":
            starts = np.array([workload.sessions[i].start_s or 0.0 for i in self.positions.usable])
            self.arrivals = iter(recorded(starts, workload.scale_load, rng).tolist())
            self.expect()
            return
        present: list[tuple[Place, Live]] = []
        for place in self.present(rng):
            agent = self.agents
            self.agents += 1
            if place.turn + 1 < self.positions.turns[place.session]:
                live = Live(self.plan_of(place.session), agent, place.turn + 1)
                present.append((place, live))
                self.after(place.until_s, self.submit, live)
            elif workload.agents:  # in an open workload a session in its last turn is as good as over
                self.after(place.until_s, self.renew, agent)
        self.live.update(live for _, live in present)
        house(present, self.replicas)
        furnish(present, self.replicas)
        self.expect()

    def present(self, rng: np.random.Generator) -> list[Place]:
        """Where the sessions are that are under way at the start. Sets `arrivals` of an open workload.

        UserError when they are more than can be simulated.
        """
        workload, positions = self.workload, self.positions
        expected = workload.agents or (workload.rate or 0.0) * positions.mean_session_s
        if expected > MOST_PRESENT:
            raise UserError(
                f"workload {workload.name}: {expected:,.0f} sessions at once; up to {MOST_PRESENT:,} are simulated: "
                "plan a share of the load and scale the answer"
            )
        if not workload.rate:
            return positions.draw(rng, int(expected))
        law, later = Renewal(workload.rate, workload.burstiness), random.Random(f"{self.seed}/arrivals")
        if workload.burstiness == 1:
            self.arrivals = law.times(later, later.expovariate(workload.rate))
            return positions.draw(rng, int(rng.poisson(expected)))
        ages, first_s = law.before(rng, positions.longest_session_s)
        self.arrivals = law.times(later, first_s)
        return positions.at(rng.choice(positions.usable, len(ages)), ages)

    # -- the life of a session -----------------------------------------------------------------------------

    def after(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        """Call `action` in `delay` seconds: an event with a callback, no process."""
        event = self.env.timeout(delay)
        event.callbacks = [lambda _: action(*args)]

    def expect(self) -> None:
        """Wait for the next session of an open or recorded workload."""
        due = next(self.arrivals, None)
        if due is not None:
            self.after(max(0.0, due - self.env.now), self.arrive)

    def arrive(self) -> None:
        """A session arrives: it is an agent of its own."""
        agent = self.agents
        self.agents += 1
        self.expect()
        self.renew(agent)

    def renew(self, agent: int) -> None:
        """The agent draws a session and sends its first turn at once."""
        usable = self.positions.usable
        if self.workload.kind == "recorded":
            index = neighbour(self.seed, agent, len(usable))
        elif self.workload.agents:
            index = pick(self.seed, agent, self.draws.get(agent, 0), len(usable))
            self.draws[agent] = self.draws.get(agent, 0) + 1
        else:
            index = pick(self.seed, agent, 0, len(usable))
        plan = self.plan_of(usable[index])
        live = Live(plan, agent, plan.begin)
        live.replica = -1
        self.live.add(live)
        self.submit(live)

    def submit(self, live: Live) -> None:
        """A turn arrives at the router."""
        live.arrival, live.first, live.made, live.at = self.env.now, -1.0, 0, 0.0
        live.hit, live.moved, live.pending = True, False, True
        self.dispatch(live)

    def dispatch(self, live: Live) -> None:
        """Send an open turn where the router says, or let it wait while no replica works."""
        if not self.up:
            self.stranded.append(live)
            return
        if self.router.looks:
            self.catch_up(*self.up)
        to = self.router.choose(live, self.up)
        if to != live.replica:
            live = self.move(live, to)
        self.replicas[to].submit(live)

    def catch_up(self, *indices: int) -> None:
        """Let replicas book the decode steps that are over: their caches are about to be compared."""
        if len(self.up) > 1:
            for index in indices:
                if index in self.up:
                    self.up[index].catch_up()

    def reroute(self, live: Live) -> bool:
        """A turn came whose cache is gone: another replica may be better. Once per turn."""
        if live.moved or live.turn == live.plan.begin:
            return False
        if self.router.looks:
            self.catch_up(*self.up)
        to = self.router.again(live, self.up)
        if to == live.replica:
            return False
        live.moved = True
        self.replicas[to].submit(self.move(live, to))
        return True

    def move(self, live: Live, to: int) -> Live:
        """The session on replica `to`; what the old one has of it is left there, to age.

        When it comes back, what is still there of it is no longer all that it had: the turn is a miss, and only what
        is found of a text, by hash, need not be fed again.
        """
        rows, old = counted(live), live.replica
        if old >= 0:
            self.replicas[old].load -= rows
        self.replicas[to].load += rows
        left = self.left.get(live.agent)
        there = left.pop(to, None) if left else None
        self.catch_up(old, to)
        if there is not None and not self.replicas[to].cache.here(there):
            there = None
        stays = old in self.up and self.up[old].cache.here(live)
        if there is None and not stays:
            live.replica = to
            return live
        if stays:
            self.left.setdefault(live.agent, {})[old] = live
        if there is None:
            there = Live(live.plan, live.agent)
        else:
            there.parked = there.blocks + there.host + 1
        there.turn, there.arrival, there.moved, there.pending = live.turn, live.arrival, live.moved, True
        there.first, there.made, there.at, there.hit, there.replica = -1.0, 0, 0.0, True, to
        self.live.discard(live)
        self.live.add(there)
        live.pending = False
        return there

    def done(self, live: Live, rejected: bool) -> None:
        """A turn is over: book it, then wait for the tool, or end the session."""
        now, plan, turn = self.env.now, live.plan, live.turn
        replica = self.replicas[live.replica]
        live.pending = False
        if rejected:
            self.rejected.append(live.arrival)
        else:
            out, wait = plan.out[turn], live.first - live.arrival
            tpot = (now - live.first) / (out - 1) if out > 1 else float("nan")
            self.turns.append(
                (live.arrival, wait, tpot, now - live.arrival, out, live.hit, live.agent, turn, live.replica)
            )
        if rejected or turn + 1 == plan.turns:
            replica.load -= counted(live)
            self.live.discard(live)
            self.left.pop(live.agent, None)
            if self.workload.agents:
                self.after(plan.wait[turn], self.renew, live.agent) if rejected else self.renew(live.agent)
            return
        replica.load += plan.rows(turn) - counted(live)
        live.turn += 1
        self.after(plan.wait[turn], self.submit, live)

    # -- a replica breaks down -----------------------------------------------------------------------------

    def fail(self, index: int, outage_s: float) -> None:
        """A replica loses everything and is back in `outage_s` seconds; its open turns start over elsewhere."""
        if index not in self.up:
            raise UserError(f"replica {index} cannot fail: {len(self.replicas)} replicas, {len(self.up)} of them work")
        replica = self.up.pop(index)
        pending = replica.fail()
        replica.load = 0
        for live in self.live:
            if live.replica == index:
                live.replica = -1
        for there in self.left.values():
            there.pop(index, None)
        self.after(outage_s, self.restore, index)
        for live in pending:
            self.dispatch(live)

    def restore(self, index: int) -> None:
        """It is back, empty. Turns that found no replica are sent."""
        self.replicas[index].repair()
        self.up = {i: replica for i, replica in enumerate(self.replicas) if i == index or i in self.up}
        waiting, self.stranded = self.stranded, []
        for live in waiting:
            self.dispatch(live)

    # -- the books -----------------------------------------------------------------------------------------

    def columns(self) -> np.ndarray:
        """The finished turns, (n, 9), in the order of `turns.COLUMNS`."""
        return self.turns.columns()

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
