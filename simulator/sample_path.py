"""Little's law as an identity of the sample path: what the engine holds over time is what its requests spent in it.

One side integrates the replica's own counters from step to step; the other adds up, request by request, what its plan
says it holds in each of its steps. All steps take the same time, so that the second side is arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

from .blocks import BlockPool
from .identities import TE, Identity, crowd, crowded, small_fleet
from .laws import Law
from .live import Live
from .meter import Meter
from .replica import Replica

STEP_S = 0.01
WORLDS = (
    ("preempting", "full", (100.0, 600.0), 25_000),
    ("evicting", "full", (800.0, 50.0), 30_000),
    ("compacting", TE, (800.0, 100.0), 12_000),
)


class Counters(Meter):
    """One side: the rows and blocks of the decoding requests of a replica, integrated over time."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        self.replica = replica
        self.row_s = self.block_s = 0.0

    def account(self, now: float, batch: int, pool: BlockPool) -> None:
        """What was held since the last look is what is held now: things change right after a look, in no time."""
        span = now - self.clock
        super().account(now, batch, pool)
        self.row_s += self.replica.decodes.rows * span
        self.block_s += (pool.active - sum(session.blocks for session in self.replica.prefilling)) * span


class Requests:
    """The other side: the same from the life of each request, of one replica."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.noted = replica, replica.note
        self.admitted: dict[Live, float] = {}
        self.spoken: dict[Live, int] = {}  # tokens that there were when it began to decode
        self.running_s = self.row_s = self.block_s = 0.0

    def note(self, event: str, session: Live) -> None:
        """What the replica would write into its log."""
        self.noted(event, session)
        now = self.replica.env.now
        if event == "admit":
            self.admitted[session] = now
        elif event == "token":
            self.spoken[session] = session.made
        elif event in ("done", "preempt"):
            self.running_s += now - self.admitted.pop(session)
            self.decoded(session, session.made)

    def decoded(self, session: Live, made: int) -> None:
        """A request that now has `made` tokens decodes no longer: a row more, and its blocks, at every step."""
        plan, turn, before = session.plan, session.turn, self.spoken.pop(session, made)
        for tokens in range(before, made):
            rows = plan.after[turn] + tokens - 1
            self.row_s += rows * STEP_S
            self.block_s += plan.blocks(turn, rows) * STEP_S

    def close(self, until: float) -> None:
        """Add what is still running, up to the end of the replica's last step."""
        self.running_s += sum(until - since for since in self.admitted.values())
        for session in list(self.spoken):
            self.decoded(session, session.plan.out[session.turn] - (session.finish - self.replica.decodes.counter))


def sample_path_checks() -> Iterable[Identity]:
    """Request-, token- and block-seconds, in pools that preempt, evict and compact."""
    for label, policy, (tool, out), pool in WORLDS:
        fleet, until = small_fleet(policy, crowded(pool), crowd(tool, out), law=Law(step_s=STEP_S), jump=False)
        sides: list[tuple[Counters, Requests]] = []
        for replica in fleet.replicas:
            counters, requests = Counters(replica), Requests(replica)
            replica.meter, replica.note = counters, requests.note
            sides.append((counters, requests))
        fleet.env.run(until=until)
        for counters, requests in sides:
            requests.close(counters.clock)
        for what, held, spent in (
            ("request-seconds running", sum(c.batch_s for c, _ in sides), sum(r.running_s for _, r in sides)),
            ("token-seconds decoding", sum(c.row_s for c, _ in sides), sum(r.row_s for _, r in sides)),
            ("block-seconds decoding", sum(c.block_s for c, _ in sides), sum(r.block_s for _, r in sides)),
        ):
            yield f"Little's law on the sample path, {label}: {what}", held, spent, 1e-9 * spent
