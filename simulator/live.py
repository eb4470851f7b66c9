"""`Live`: one session in flight, as its replica keeps it."""

from __future__ import annotations

from .session import SessionPlan


class Live:
    """One session in flight: its plan, where it stands, and what it holds. Mutated by its replica only."""

    __slots__ = (
        "agent", "arrival", "at", "blocks", "finish", "first", "hit", "left", "lent", "made", "moved", "pay",
        "pending", "plan", "replica", "slope", "turn",
    )  # fmt: skip

    def __init__(self, plan: SessionPlan, agent: int, turn: int = 0) -> None:
        self.plan, self.agent, self.turn = plan, agent, turn
        self.replica = 0
        self.blocks = 0  # held by the session itself, as of the last time it changed hands
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
