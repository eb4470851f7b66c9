"""Segment policies: turn t is compacted once, when turn t + delay closes, each of its segments by itself, and frozen.

Of n tokens m = max(1, ⌈keep·n⌉) stay (`rounding` says ⌈⌉ or ⌊⌋), protected tokens among them; P and later user
messages stay whole. Rows are therefore P + frozen segments + the raw turns of the delay window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Literal

from .base import (
    QUERY_ROWS_CAP,
    KvShape,
    Policy,
    SegmentSize,
    TurnFootprint,
    TurnSizes,
    Work,
    ceil_share,
    split_turns,
)
from .options import choice, integer, option, ratio
from .protect import forced_count, protect_option


@dataclass(frozen=True)
class SegmentPolicy(Policy):
    """Shared options and arithmetic. Subclasses say which queries they capture."""

    rounding: ClassVar[Literal["ceil", "floor"]] = "ceil"
    holds_bias: ClassVar[bool] = False
    """Whether compacted rows carry a β: then the cache holds one for every row from the first compaction on."""

    keep: Decimal = option(Decimal("0.2"), "share of each segment kept", parse=ratio, show="ratio")
    keep_assistant: Decimal | None = option(None, "overrides keep for assistant segments", parse=ratio, show="ratio")
    keep_tool: Decimal | None = option(None, "overrides keep for tool segments", parse=ratio, show="ratio")
    keep_user: Decimal | None = option(None, "share of later user segments kept (whole)", parse=ratio, show="ratio")
    delay: int = option(0, "turns to wait before a turn is compacted", parse=integer(0), show="int ≥ 0")
    protect: str = protect_option()
    granularity: str = option(
        "head", "token: the same indices for every head of a layer", parse=choice("head", "token"), show="head | token"
    )

    # -- what a subclass captures ---------------------------------------------------------------------------

    def own_queries(self, segment: SegmentSize) -> int:
        """Last tokens of a segment whose queries are captured for itself, while it is fed."""
        return 0

    def future_queries(self, turn: TurnSizes) -> int:
        """Tokens of a turn whose queries are captured for the turns before it."""
        return 0

    def copy_queries(self, segment: SegmentSize) -> int:
        """Tokens of a segment's copy whose queries are captured for it, when its turn closes."""
        return 0

    def copied(self, turn: TurnSizes) -> int:
        """Tokens fed as copies of a turn when it closes, prompts included."""
        return 0

    def copy_rows(self, turn: TurnSizes) -> int:
        """Most rows that a copy of the turn takes at once."""
        return self.copied(turn)

    def normalisers(self, captured: int) -> int:
        """How many of `captured` tokens carry a log-sum-exp per query head."""
        return 0

    def scoring_rows(self, segment: SegmentSize, later: Sequence[TurnSizes], group: int) -> int:
        """Query rows per KV head that score a segment when the last of the turns `later` closes."""
        future = sum(self.future_queries(turn) for turn in later)
        rows = group * (future + self.own_queries(segment) + self.copy_queries(segment))
        return min(QUERY_ROWS_CAP, rows)

    def segment_work(self, segment: SegmentSize, kept: int, rows: int, shape: KvShape) -> Work:
        """Scoring `rows` query rows against the segment: 2·rows·n·D per head for the logits, 5·rows·n for the rest."""
        heads, tokens = shape.layers * shape.kv_heads, segment.tokens
        flops = heads * (2.0 * rows * tokens * shape.head_dim + 5.0 * rows * tokens)
        return Work(flops, heads * (tokens + rows) * shape.head_dim * shape.dtype_bytes)

    # -- what follows from it -------------------------------------------------------------------------------

    def compacts(self, segment: SegmentSize) -> bool:
        """Whether the policy compacts segments of this kind at all."""
        return segment.kind in ("assistant", "tool") or (segment.kind == "user" and self.keep_user is not None)

    def share(self, segment: SegmentSize) -> Decimal:
        """The keep ratio of a compacted segment."""
        own = {"assistant": self.keep_assistant, "tool": self.keep_tool, "user": self.keep_user}.get(segment.kind)
        return self.keep if own is None else own

    def kept(self, segment: SegmentSize) -> int:
        """Rows left of a segment: m, or all protected tokens when there are more than m."""
        if not self.compacts(segment) or not segment.tokens:
            return segment.tokens
        keep = self.share(segment)
        least = max(1, math.floor(keep * segment.tokens))
        m = ceil_share(keep, segment.tokens) if self.rounding == "ceil" else least
        return min(segment.tokens, max(m, forced_count(segment, self.protect)))

    def shrinks(self, turn: TurnSizes) -> bool:
        """Whether any segment of the turn loses a row."""
        return any(self.kept(s) < s.tokens for s in turn.segments())

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows, captured queries and β after each turn."""
        turns = split_turns(segments)
        held = self._held(turns)
        rows, biased, out = 0, False, []
        for t, turn in enumerate(turns):
            rows += turn.tokens
            peak, done, was_biased = rows, 0, biased
            for segment in turns[t - self.delay].segments() if t >= self.delay else ():
                lost = segment.tokens - self.kept(segment)
                done += lost > 0
                rows -= lost
            biased = biased or (self.holds_bias and done > 0)
            before, after = held[t]
            out.append(
                TurnFootprint(
                    rows,
                    peak,
                    query_rows=after,
                    query_rows_peak=before,
                    scalar_rows=rows if biased else 0,
                    scalar_rows_peak=peak if was_biased else 0,
                    normaliser_rows=self.normalisers(after),
                    normaliser_rows_peak=self.normalisers(before),
                    transient_rows=self.copy_rows(turn),
                    copied_tokens=self.copied(turn),
                    compactions=done,
                )
            )
        return out

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Scoring of the segments compacted at each turn's close, and the kept rows read and written.

        Tokens fed as copies are not in it: the footprint counts them, and they cost a prefill. Where layers share
        caches, every cache is charged the mean number of query heads that read it, rounded up.
        """
        turns = split_turns(segments)
        group = -(-shape.readers * shape.q_heads // (shape.layers * shape.kv_heads))
        out: list[Work] = []
        for t in range(len(turns)):
            work = Work()
            if t >= self.delay:
                later = turns[t - self.delay + 1 : t + 1]
                for segment in turns[t - self.delay].segments():
                    kept = self.kept(segment)
                    if kept < segment.tokens:
                        rows = self.scoring_rows(segment, later, group)
                        work += self.segment_work(segment, kept, rows, shape) + Work(0, 2.0 * kept * shape.row_bytes)
            out.append(work)
        return out

    def _held(self, turns: Sequence[TurnSizes]) -> list[tuple[int, int]]:
        """Captured tokens held when each turn closes, before and after the compaction it triggers."""
        own = [sum(self.own_queries(s) + self.copy_queries(s) for s in turn.segments()) for turn in turns]
        future = [self.future_queries(turn) if self.delay else 0 for turn in turns]

        def waiting(first: int, t: int) -> int:
            return sum(own[first : t + 1]) + sum(future[first + 1 : t + 1])

        return [(waiting(max(0, t - self.delay), t), waiting(max(0, t - self.delay + 1), t)) for t in range(len(turns))]
