"""`DecodeSet`: the sequences of one replica that decode, so that a stretch of equal steps is arithmetic.

Every step gives each of them one token and one row. Kept are their number, the sum of their rows, when each is complete
(by a counter of steps), and in which step each crosses into a new block.
"""

from __future__ import annotations

import heapq

from .cost import CostModel
from .deployment import BLOCK_TOKENS
from .live import Live

MASK = BLOCK_TOKENS - 1


class DecodeSet:
    """Counts of sequences, rows and steps. Mutates. No stretch is longer than `limit` steps."""

    def __init__(self, cost: CostModel, limit: int) -> None:
        self.cost, self.limit = cost, limit
        self.count = self.rows = self.counter = 0
        self._serial = 0
        self._heap: list[tuple[int, int, Live]] = []
        self._bins = [0] * BLOCK_TOKENS  # sequences by (own rows − counter) mod block

    def add(self, session: Live, rows: int, left: int) -> None:
        """A sequence begins to decode on `rows` rows, with `left` tokens to go."""
        session.finish = self.counter + left
        self._serial += 1
        heapq.heappush(self._heap, (session.finish, self._serial, session))
        self.count += 1
        self.rows += rows
        self._bins[(rows - self.counter) & MASK] += 1

    def remove(self, session: Live) -> None:
        """A sequence stops; it is left with the blocks it has grown to."""
        rows = self.rows_of(session)
        self.count -= 1
        self.rows -= rows
        self._bins[(rows - self.counter) & MASK] -= 1
        session.blocks = session.plan.blocks(session.turn, rows)
        session.finish = -1

    def rows_of(self, session: Live) -> int:
        """Rows that a sequence holds now."""
        return session.plan.rows(session.turn) - (session.finish - self.counter)

    def held(self, session: Live) -> int:
        """Blocks of a running session now, whether it decodes or not."""
        return session.blocks if session.finish < 0 else session.plan.blocks(session.turn, self.rows_of(session))

    def advance(self, steps: int) -> None:
        """`steps` have passed."""
        self.rows += self.count * steps
        self.counter += steps

    def complete(self) -> list[Live]:
        """Take out the sequences that have their last token, in the order they began."""
        heap, out = self._heap, []
        while heap and heap[0][0] <= self.counter:
            finish, _, session = heapq.heappop(heap)
            if session.finish == finish:
                self.remove(session)
                out.append(session)
        return out

    def due(self) -> int:
        """Blocks that the next step takes."""
        return self._bins[-self.counter & MASK]

    def growth(self, steps: int) -> int:
        """Blocks that `steps` steps take: one per sequence and 16 steps, at the step its residue says."""
        cycles, rest = divmod(steps, BLOCK_TOKENS)
        bins, end = self._bins, (-self.counter & MASK) + 1
        begin = end - rest
        crossing = sum(bins[begin:end]) if begin >= 0 else sum(bins[:end]) + sum(bins[begin:])
        return cycles * self.count + crossing

    # -- stretches -----------------------------------------------------------------------------------------

    def stretch(self, available: int) -> int:
        """Steps until a sequence is complete or `available` blocks run out."""
        heap = self._heap
        while heap[0][2].finish != heap[0][0]:
            heapq.heappop(heap)
        steps = min(heap[0][0] - self.counter, self.limit)
        if self.count * (steps // BLOCK_TOKENS + 1) > available:
            cycles = available // self.count
            left, room = available - cycles * self.count, cycles * BLOCK_TOKENS
            while room < steps and self._bins[-(self.counter + room) & MASK] <= left:
                left -= self._bins[-(self.counter + room) & MASK]
                room += 1
            steps = min(steps, room)
        return steps

    def span_s(self, steps: int) -> float:
        """Seconds of `steps` steps from here."""
        return self.cost.stretch_s(self.count, self.rows, steps)

    def steps_until(self, passed: float, most: int) -> int:
        """The fewest steps (1…most) whose end is not before `passed` seconds from here."""
        low, high = 1, most
        near = int(passed / max(self.span_s(most), 1e-300) * most) + 1  # steps are nearly of one length
        probes = [near + 1, near - 1, near]
        while low < high:
            middle = min(max(probes.pop(), low), high - 1) if probes else (low + high) // 2
            if self.span_s(middle) >= passed:
                high = middle
            else:
                low = middle + 1
        return low
