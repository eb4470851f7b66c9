"""One policy's path through a trajectory: its lane (cache and position), bookkeeping, and counted work.

Branches that have not diverged share a lane; the first eviction gives a branch a lane of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import UserError
from .cache import BLOCK_ROWS, KvCache
from .fixed import FixedStates
from .policies.base import KvShape, Policy, SegmentSize, TurnFootprint, Work
from .policies.state_table import state_for
from .policies.states import Eviction, PolicyState, Rewrite, Scene


@dataclass(eq=False)
class Lane:
    """A cache, the logical position of its next token, what is never compacted, and how many branches ride on it."""

    cache: KvCache
    position: int = 0
    riders: int = 1
    fixed: FixedStates = field(default_factory=FixedStates)

    def fork(self) -> Lane:
        """A lane in the same state for one branch."""
        return Lane(self.cache.fork(), self.position, 1, self.fixed.fork())

    def release(self) -> None:
        """Give all tensors up."""
        self.cache.release()
        self.fixed.clear()

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """Whatever is fed inside leaves no trace: rows, position and states are as before afterwards."""
        rows, position, fixed = self.cache.rows, self.position, self.fixed.fork()
        try:
            yield
        finally:
            self.cache.roll_back(rows)
            self.position, self.fixed = position, fixed


@dataclass
class TurnCounters:
    """What one branch did and held inside the current turn."""

    rows_peak: int = 0
    aux_bytes_peak: int = 0
    kv_bytes_peak: int = 0
    compactions: int = 0
    reprefill_tokens: int = 0
    copied_tokens: int = 0
    transient_rows: int = 0

    @property
    def held_peak(self) -> int:
        """Most rows at once, a copy that was fed for scoring included."""
        return self.rows_peak + self.transient_rows


@dataclass(frozen=True, slots=True)
class Held:
    """One turn that has closed: logical tokens by then, what was held after it, and what it did and held inside."""

    logical_tokens: int
    kv_rows: int
    kv_bytes: int
    aux_bytes: int
    counters: TurnCounters

    @classmethod
    def of(cls, logical_tokens: int, branch: Branch, counters: TurnCounters) -> Held:
        """What a branch holds now."""
        return cls(logical_tokens, branch.rows, branch.lane.cache.nbytes, branch.aux_bytes, counters)


class FootprintMismatch(AssertionError):
    """A policy's arithmetic differs from the live tensors: a bug in one of them."""


@dataclass(eq=False)
class Branch:
    """A policy running on a trajectory. `index[l, h, r]` is the logical token in row r of layer l, head h.

    `pending` are logical tokens that a text-level policy has yet to feed.
    """

    policy: Policy
    lane: Lane
    shape: KvShape
    expected: list[TurnFootprint]
    work: list[Work]
    state: PolicyState
    index: Tensor
    counters: TurnCounters = field(default_factory=TurnCounters)
    pending: list[int] = field(default_factory=list)
    error: str | None = None

    @classmethod
    def start(cls, policy: Policy, lane: Lane, sizes: list[SegmentSize], scene: Scene) -> Branch:
        """A branch at the beginning of a trajectory."""
        shape = scene.shape
        index = torch.empty(shape.layers, shape.kv_heads, 0, dtype=torch.int32, device=scene.device)
        state = state_for(policy, scene)
        return cls(policy, lane, shape, policy.footprint(sizes), policy.work(sizes, shape), state, index)

    @property
    def rows(self) -> int:
        """Rows in use per layer and KV head."""
        return self.lane.cache.rows

    def fed(self, logical: Sequence[int]) -> None:
        """These logical tokens were appended to the lane."""
        new = torch.tensor(logical, dtype=torch.int32, device=self.index.device)
        self.index = torch.cat([self.index, new.expand(*self.index.shape[:2], len(logical))], dim=-1)
        self.note_peak()

    @property
    def aux_bytes(self) -> int:
        """Bytes held beside K and V: what the policy's state holds, and the β of the rows in use."""
        return self.state.aux_bytes() + self.lane.cache.bias_bytes

    def note_peak(self, copied: int = 0) -> None:
        """Remember the largest sizes inside the turn; the last `copied` rows are a copy that is taken back."""
        counters = self.counters
        counters.rows_peak = max(counters.rows_peak, self.rows - copied)
        counters.transient_rows = max(counters.transient_rows, copied)
        aux_bytes = self.aux_bytes - 4 * copied * self.shape.layers * self.shape.kv_heads * (
            self.lane.cache.bias_bytes > 0
        )
        counters.aux_bytes_peak = max(counters.aux_bytes_peak, aux_bytes)
        counters.kv_bytes_peak = max(counters.kv_bytes_peak, self.lane.cache.nbytes)

    def own_lane(self) -> Lane:
        """A lane this branch may write to alone: forked off if others ride on the present one."""
        if self.lane.riders > 1:
            self.lane.riders -= 1
            self.lane = self.lane.fork()
        return self.lane

    def evict(self, eviction: Eviction) -> None:
        """Free the rows that `eviction` does not keep."""
        lane = self.own_lane()
        if eviction.position is not None and lane.fixed.sliding:
            raise UserError("rows cannot be renumbered beside sliding-window layers, which keep their positions")
        lane.cache.evict(eviction.start, eviction.index, eviction.keys, eviction.values, eviction.bias)
        if eviction.position is not None:
            lane.position = eviction.position
        tail = self.index.gather(2, eviction.index)
        self.index = torch.cat([self.index[..., : eviction.start], tail], dim=-1)
        self.state.evicted(eviction)
        self.counters.compactions += eviction.segments
        self.note_peak()  # the first β may weigh more than the queries that were let go

    def rewrite(self, rewrite: Rewrite) -> None:
        """Drop every row after the first changed token, and note what is to be fed after it."""
        lane = self.own_lane()
        self.pending = list(rewrite.feed)
        if rewrite.unchanged_rows < self.rows:
            rows = rewrite.unchanged_rows
            if lane.fixed.nbytes:
                # Sliding windows and recurrent states have no way back: the unchanged beginning is fed again. It is
                # not counted: a server holds a snapshot of these states where the text was cut before.
                self.pending = [*self.index[0, 0, :rows].tolist(), *self.pending]
                rows = 0
                lane.fixed.clear()
            lane.cache.roll_back(rows)
            lane.position = rows
            self.index = self.index[..., :rows].clone()
        if rewrite.cut:
            self.counters.compactions += 1
            self.counters.reprefill_tokens += len(rewrite.feed)

    def check(self, turn: int) -> None:
        """Raise FootprintMismatch unless the live tensors are what the policy's footprint says, or within its bound."""
        want, have = self.expected[turn], self.counters
        aux, aux_peak = self.aux_bytes, have.aux_bytes_peak
        cache = self.lane.cache
        spare = cache.nbytes - self.rows * self.shape.row_bytes
        pairs = {
            "kv_rows": (self.rows, want.kv_rows),
            "kv_rows_peak": (have.rows_peak, want.kv_rows_peak),
            "index rows": (self.index.shape[2], want.kv_rows),
            "aux_bytes": (aux, want.aux_bytes(self.shape)),
            "aux_bytes_peak": (aux_peak, want.aux_bytes_peak(self.shape)),
            "compactions": (have.compactions, want.compactions),
            "reprefill_tokens": (have.reprefill_tokens, want.reprefill_tokens),
            "copied_tokens": (have.copied_tokens, want.copied_tokens),
            "transient_rows": (have.transient_rows, want.transient_rows),
            "layers of other length": (cache.ragged, False),
            "more than one spare block per layer": (spare >= BLOCK_ROWS * self.shape.row_bytes, False),
        }
        exact = self.policy.exact
        wrong = [f"{name} live {a}, footprint {b}" for name, (a, b) in pairs.items() if (a != b if exact else a > b)]
        if wrong:
            raise FootprintMismatch(f"turn {turn}: " + "; ".join(wrong))

    def kept_share(self, tokens: int) -> Tensor:
        """Share of layer-heads that still hold each logical token, (tokens,) float32."""
        counts = torch.bincount(self.index.flatten().long(), minlength=tokens)
        return counts.float() / (self.shape.layers * self.shape.kv_heads)
