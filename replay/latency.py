"""Latency by forced decode: one policy alone, warmed and repeated.

Recorded assistant tokens are fed one by one with their logits, as a server would generate them; everything
else is prefilled. Per model call: TTFT = prefill of the tool response and of what begins the turn (a user message,
the assistant's header, whose last row yields the first token) + the compaction that the tool response triggered.

The last generated token and the closing markup are fed untimed: a server joins them to the next prefill, where they
are two tokens of a hundred; a pass of their own would cost as much as a decode step. What a trigger evicts at their end
delays the next call.

On a GPU the marks are events (`clock`), read when the pass is over: nothing waits for the device inside the loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..traces.tokens import TokenSegment, TokenTrajectory
from .clock import Span, clock_of
from .forward import Forward
from .lockstep import Lockstep
from .memory import released_on_error
from .policies.base import Policy
from .policies.states import Chunk
from .segments import turns_of


@dataclass(frozen=True, slots=True)
class CallLatency:
    """One model call: seconds of prefill, of compaction before the first token, and of the decode steps.

    `spread_s`: by how much the slowest repeat of the whole call is slower than the fastest; None for a single one.
    """

    turn: int
    prefill_s: float
    compaction_s: float
    decode_s: float
    decode_tokens: int
    spread_s: float | None = None

    @property
    def ttft_s(self) -> float:
        """Prefill (its last row yields the first token) and compaction."""
        return self.prefill_s + self.compaction_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single-token answer."""
        return self.decode_s / self.decode_tokens if self.decode_tokens else None

    @property
    def turn_s(self) -> float:
        """The whole call."""
        return self.ttft_s + self.decode_s


def measure_latency(
    forward: Forward,
    trajectory: TokenTrajectory,
    policy: Policy,
    *,
    seed: int = 0,
    repeats: int = 3,
    last_turns: int | None = None,
) -> list[CallLatency]:
    """Median over `repeats` of every timed call, with their spread, after one warm-up of the first two turns.

    `last_turns` times only the last calls, at the largest contexts; the earlier turns are then fed in chunks.
    """
    turns = turns_of(trajectory)
    first = 0 if last_turns is None else max(0, len(turns) - last_turns)
    Stopwatch(forward, trajectory, policy, seed).run(turns[:2], 0)
    runs = [Stopwatch(forward, trajectory, policy, seed).run(turns, first) for _ in range(repeats)]
    return [_median(calls) for calls in zip(*runs, strict=True)]


def _median(calls: Sequence[CallLatency]) -> CallLatency:
    whole = [call.turn_s for call in calls]
    return CallLatency(
        calls[0].turn,
        statistics.median(c.prefill_s for c in calls),
        statistics.median(c.compaction_s for c in calls),
        statistics.median(c.decode_s for c in calls),
        calls[0].decode_tokens,
        max(whole) - min(whole) if len(whole) > 1 else None,
    )


@dataclass
class _Spans:
    """What a call waits for, or has waited for, before its first token; then its decode steps."""

    prefill: list[Span] = field(default_factory=list)
    compaction: list[Span] = field(default_factory=list)
    decode: list[Span] = field(default_factory=list)


@dataclass
class _Call:
    turn: int
    spans: _Spans
    decode_tokens: int


class Stopwatch:
    """One timed pass over a trajectory. `due` holds what the next call's first token waits for."""

    def __init__(self, forward: Forward, trajectory: TokenTrajectory, policy: Policy, seed: int) -> None:
        self.forward = forward
        self.step = Lockstep(forward, trajectory, [policy], seed)
        self.clock = clock_of(forward.model.device)
        self.due = _Spans()

    def run(self, turns: Sequence[Sequence[TokenSegment]], first_timed: int) -> list[CallLatency]:
        """Latencies of the calls of turns `first_timed`…; raises if the policy fails."""
        with released_on_error(self.step):
            calls = self._run(turns, first_timed)
            self.clock.settle()
            return [self._told(call) for call in calls]

    def _run(self, turns: Sequence[Sequence[TokenSegment]], first_timed: int) -> list[_Call]:
        calls: list[_Call] = []
        for turn, segments in enumerate(turns):
            for segment in segments:
                if segment.kind == "assistant" and turn >= first_timed:
                    calls.append(self._call(turn, segment))
                    continue
                self._prefill(self.step.chunks(segment))
                if segment.kind == "assistant":
                    self._ended()  # an untimed call
            self._close(turn)
            if (error := self.step.branches[0].error) is not None:
                raise RuntimeError(error)
        return calls

    def _told(self, call: _Call) -> CallLatency:
        spans = (call.spans.prefill, call.spans.compaction, call.spans.decode)
        prefill_s, compaction_s, decode_s = map(self.clock.seconds, spans)
        return CallLatency(call.turn, prefill_s, compaction_s, decode_s, call.decode_tokens)

    def _call(self, turn: int, segment: TokenSegment) -> _Call:
        first, last = segment.scored
        self._prefill(self.step.chunks(segment, 0, first))
        spans, self.due = self.due, _Spans()
        steps = range(first, max(first, last - 1))
        for at in steps:
            # What a trigger evicts inside the decode delays these tokens: it is part of the decode.
            spans.decode += self._fed(Chunk(segment, at, at + 1, self.step.logical))
        self._prefill(self.step.chunks(segment, max(first, last - 1), len(segment.ids)))
        self._ended()
        return _Call(turn, spans, len(steps))

    def _ended(self) -> None:
        """A message is complete: of all before this the next call waits for the eviction at its last token alone."""
        self.due = _Spans(compaction=self.due.compaction[-1:])

    def _prefill(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            feeding, evicting = self._fed(chunk)
            self.due.prefill.append(feeding)
            self.due.compaction.append(evicting)

    def _fed(self, chunk: Chunk) -> tuple[Span, Span]:
        """Feeding one chunk with the logits of its last row, and the evictions at its end."""
        start = self.clock.mark()
        _, hidden = self.step.feed(chunk)
        if hidden is not None:
            self.forward.log_probabilities(hidden[:, -1])
        fed = self.clock.mark()
        self.step.look(chunk)
        return (start, fed), (fed, self.clock.mark())

    def _close(self, turn: int) -> None:
        """The turn closes: compaction, then what a text-level policy feeds after its cut, which is prefill."""
        start = self.clock.mark()
        self.step.compact(turn)
        compacted = self.clock.mark()
        self.step.catch_up()
        self.due.compaction.append((start, compacted))
        self.due.prefill.append((compacted, self.clock.mark()))
        self.step.settle(turn)
