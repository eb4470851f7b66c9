"""`Live`: one session in flight, as its replica keeps it."""

from __future__ import annotations

from .session import SessionPlan


class Live:
    """One session in flight: its plan, where it stands, and what it holds. Mutated by its replica only."""

    __slots__ = (
        "agent", "arrival", "at", "blocks", "fetched", "finish", "first", "hit", "host", "left", "lent", "made",
        "moved", "parked", "pay", "pending", "plan", "replica", "since", "slope", "swapped", "turn",
    )  # fmt: skip

    def __init__(self, plan: SessionPlan, agent: int, turn: int = 0) -> None:
        self.plan, self.agent, self.turn = plan, agent, turn
        self.replica = 0
        self.blocks = 0  # held by the session itself, as of the last time it changed hands
        self.parked = 0  # what it held when it went idle: more than `blocks` once its tail has been evicted
        self.since = 0.0  # when it went idle
        self.host = 0  # blocks in host memory
        self.fetched = False  # and those are on their way back, or there
        self.swapped = False  # preempted with everything it held in host memory
        self.arrival = 0.0
        self.first = -1.0
        self.hit = True
        self.pending = False  # a turn of it has arrived and is not over
        self.moved = False  # this turn was sent to another replica
        self.made = 0  # tokens of this turn that exist
        self.left = 0  # tokens still to prefill
        self.at = 0.0  # rows under the next prefill token
        self.slope = 1.0  # rows per prefilled token (below 1 while a compacted session is rebuilt)
        self.pay = 0.0  # compaction seconds at the end of this prefill
        self.finish = -1  # decode counter at which the turn is complete; −1 while not decoding
        self.lent = 0  # blocks of a shared prefix that this session is the first to load

    @property
    def divisible(self) -> bool:
        """Whether what is left after its tail has been evicted is of use: to the text, or beside a copy of the rest."""
        return self.plan.divisible or self.host > 0

    def reset(self) -> None:
        """As if nothing of it had ever been on a replica: the open turn starts over."""
        self.blocks = self.parked = self.host = self.made = self.left = self.lent = 0
        self.fetched = self.swapped = self.hit = False
        self.first, self.finish, self.pay = -1.0, -1, 0.0
