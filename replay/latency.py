"""Latency by forced decode: one policy alone, warmed and repeated.

Recorded assistant tokens are fed one by one with their logits, as a server would generate them; everything
else is prefilled. Per model call: TTFT = prefill of what came since the last call + compaction on the critical
path + the step that yields the first token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..traces.tokens import TokenSegment, TokenTrajectory
from .forward import Forward
from .lockstep import Lockstep
from .policies.base import Policy
from .policies.states import Chunk
from .segments import turns_of


@dataclass(frozen=True, slots=True)
class CallLatency:
    """One model call: seconds of prefill, of compaction before the first token, and of the decode steps."""

    turn: int
    prefill_s: float
    compaction_s: float
    decode_s: float
    decode_tokens: int

    @property
    def ttft_s(self) -> float:
        """Prefill (its last row yields the first token) and compaction."""
        return self.prefill_s + self.compaction_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single-token answer."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None


def measure_latency(
    forward: Forward,
    trajectory: TokenTrajectory,
    policy: Policy,
    *,
    seed: int = 0,
    repeats: int = 3,
    last_turns: int | None = None,
) -> list[CallLatency]:
    """Median over `repeats` of every timed call, after one warm-up of the first two turns.

    `last_turns` times only the last calls, at the largest contexts; the earlier turns are then fed in chunks.
    """
    turns = turns_of(trajectory)
    first = 0 if last_turns is None else max(0, len(turns) - last_turns)
    Stopwatch(forward, trajectory, policy, seed).run(turns[:2], 0)
    runs = [Stopwatch(forward, trajectory, policy, seed).run(turns, first) for _ in range(repeats)]
    return [_median(calls) for calls in zip(*runs, strict=True)]


def _median(calls: Sequence[CallLatency]) -> CallLatency:
    return CallLatency(
        calls[0].turn,
        statistics.median(c.prefill_s for c in calls),
        statistics.median(c.compaction_s for c in calls),
        statistics.median(c.decode_s for c in calls),
        calls[0].decode_tokens,
    )


class Stopwatch:
    """One timed pass over a trajectory."""

    def __init__(self, forward: Forward, trajectory: TokenTrajectory, policy: Policy, seed: int) -> None:
        self.forward = forward
        self.step = Lockstep(forward, trajectory, [policy], seed)
        self.prefill_s = self.compaction_s = 0.0

    def run(self, turns: Sequence[Sequence[TokenSegment]], first_timed: int) -> list[CallLatency]:
        """Latencies of the calls of turns `first_timed`…; raises if the policy fails."""
        calls: list[CallLatency] = []
        for turn, segments in enumerate(turns):
            timed = turn >= first_timed
            for segment in segments:
                if segment.kind == "assistant" and timed:
                    calls.append(self._call(turn, segment))
                else:
                    self._prefill(self.step.chunks(segment))
            self.compaction_s += self._clocked_compaction(turn)
            self.step.settle(turn)
            branch = self.step.branches[0]
            if branch.error is not None:
                raise RuntimeError(branch.error)
            if not timed:
                # What ran before the first timed call is not its critical path, but its last prefill is.
                self.prefill_s = self.compaction_s = 0.0
        return calls

    def _call(self, turn: int, segment: TokenSegment) -> CallLatency:
        first, last = segment.scored
        self._prefill(self.step.chunks(segment, 0, first))
        prefill_s, compaction_s = self.prefill_s, self.compaction_s
        self.prefill_s = self.compaction_s = 0.0
        decode_s = 0.0
        steps = range(first, max(first, last - 1))
        for at in steps:
            decode_s += self._fed(Chunk(segment, at, at + 1, self.step.logical))
        self._prefill(self.step.chunks(segment, max(first, last - 1), len(segment.ids)))
        return CallLatency(turn, prefill_s, compaction_s, decode_s, len(steps))

    def _prefill(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.prefill_s += self._fed(chunk)

    def _fed(self, chunk: Chunk) -> float:
        """Seconds of feeding one chunk with the logits of its last row; evictions inside go to compaction."""
        start = self._now()
        _, hidden = self.step.feed(chunk)
        self.forward.log_probabilities(hidden[:, -1])
        fed = self._now()
        self.step.look(chunk)
        self.compaction_s += self._now() - fed
        return fed - start

    def _clocked_compaction(self, turn: int) -> float:
        start = self._now()
        self.step.compact(turn)
        return self._now() - start

    def _now(self) -> float:
        if self.forward.model.device.type == "cuda":
            torch.cuda.synchronize(self.forward.model.device)
        return time.perf_counter()
