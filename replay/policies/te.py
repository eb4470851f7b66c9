"""`te`: token eviction. The keys that proxy queries read most are kept; the rest are freed, once per turn.

Score of key j under proxy queries i (arXiv 2608.00902, eq. 2-3): s_j = sqrt(mean_i softmax_j(q_i·k_j·scale)²),
softmax over the segment. Per layer and KV head the m = max(1, ⌈keep·n⌉) best keys stay, structural tokens
among them; a compacted segment is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

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
    usage,
)
from .options import PROTECT, PROTECT_DOC, choice, integer, mix, option, ratio

PROXIES = ("assistant", "boundary", "tool")
FUTURE = ("assistant", "tool")


@dataclass(frozen=True)
class TokenEviction(Policy):
    """Turn t is compacted when turn t + delay closes, its assistant and tool segments separately."""

    name = "te"
    summary = "token eviction: keep what the agent's own later queries read"
    formula = "s_j = sqrt(mean_i softmax_j(q_i·k_j)²), top m = max(1, ⌈keep·n⌉) per layer and KV head"
    source = "arXiv 2608.00902, eq. 2-3; compaction.md 1 and 8"

    proxy: str = option(
        "assistant",
        "where scoring queries come from; a mix shares the budget evenly",
        parse=mix(*PROXIES),
        show="assistant | boundary | tool, joined by +",
    )
    delay: int = option(
        -1,
        "turns to wait before a turn is compacted (1 with a future source, else 0)",
        parse=integer(0),
        show="int ≥ 0",
    )
    keep: Decimal = option(Decimal("0.2"), "share of each segment kept", parse=ratio, show="ratio")
    keep_assistant: Decimal | None = option(None, "overrides keep for assistant segments", parse=ratio, show="ratio")
    keep_tool: Decimal | None = option(None, "overrides keep for tool segments", parse=ratio, show="ratio")
    keep_user: Decimal | None = option(None, "share of later user segments kept (whole)", parse=ratio, show="ratio")
    protect: str = option("structure", PROTECT_DOC, parse=choice(*PROTECT), show=" | ".join(PROTECT))
    reduction: str = option("rms", "over query rows", parse=choice("rms", "mean", "max"), show="rms | mean | max")
    granularity: str = option(
        "head", "token: the same indices for every head of a layer", parse=choice("head", "token"), show="head | token"
    )

    def __post_init__(self) -> None:
        if self.delay < 0:
            object.__setattr__(self, "delay", int(any(p in FUTURE for p in self.proxies)))
        if self.delay == 0 and any(p in FUTURE for p in self.proxies):
            raise usage(str(self), "delay=0 has no later turn: use proxy=boundary, or delay=1 or more")

    @property
    def proxies(self) -> tuple[str, ...]:
        """The query sources, in the order given."""
        return tuple(self.proxy.split("+"))

    def kept(self, segment: SegmentSize) -> int:
        """Rows left of a compacted segment: m, or all protected tokens when there are more than m."""
        own = {"assistant": self.keep_assistant, "tool": self.keep_tool, "user": self.keep_user}.get(segment.kind)
        if segment.kind == "prefix" or (segment.kind == "user" and own is None):
            return segment.tokens
        keep = self.keep if own is None else own
        forced = segment.protected if self.protect == "structure" else 0
        return min(segment.tokens, max(ceil_share(keep, segment.tokens), forced))

    def footprint(self, segments: Sequence[SegmentSize]) -> list[TurnFootprint]:
        """Rows are P + frozen segments + the raw turns of the delay window."""
        turns = split_turns(segments)
        rows, out = 0, []
        for t, turn in enumerate(turns):
            rows += turn.tokens
            peak, done = rows, 0
            if t >= self.delay:
                for segment in turns[t - self.delay].segments():
                    done += self.kept(segment) < segment.tokens
                    rows -= segment.tokens - self.kept(segment)
            out.append(
                TurnFootprint(
                    rows,
                    peak,
                    query_rows=self._held(turns, t, after=True),
                    query_rows_peak=self._held(turns, t, after=False),
                    compactions=done,
                )
            )
        return out

    def _captured(self, turn: TurnSizes, index: int) -> int:
        """Tokens of a turn whose queries are captured for others (future sources). Turn 0 serves nobody."""
        if index == 0 or self.delay == 0:
            return 0
        count = turn.assistant.tokens if "assistant" in self.proxies else 0
        if "tool" in self.proxies and turn.tool:
            count += turn.tool.tokens
        return count

    def _own(self, turn: TurnSizes) -> int:
        """Tokens of a turn whose queries are captured for itself (boundary)."""
        if "boundary" not in self.proxies:
            return 0
        compacted = [
            s for s in turn.segments() if s.kind != "prefix" and not (s.kind == "user" and self.keep_user is None)
        ]
        return sum(min(s.closing, s.tokens) for s in compacted)

    def _held(self, turns: list[TurnSizes], t: int, *, after: bool) -> int:
        """Captured tokens held when turn t closes, before or after the compaction it triggers."""
        future = turns[max(0, t - self.delay + 1 + after) : t + 1]
        first = max(0, t - self.delay + after)
        own = turns[first : t + 1]
        start = t + 1 - len(future)
        return sum(self._captured(u, start + i) for i, u in enumerate(future)) + sum(self._own(u) for u in own)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """Scoring: 2·rows·n·D per layer and KV head; gather: the kept rows read and written."""
        turns = split_turns(segments)
        out: list[Work] = []
        for t in range(len(turns)):
            work = Work()
            if t >= self.delay:
                turn = turns[t - self.delay]
                later = sum(
                    self._captured(u, t - self.delay + 1 + i) for i, u in enumerate(turns[t - self.delay + 1 : t + 1])
                )
                for segment in turn.segments():
                    kept = self.kept(segment)
                    if kept == segment.tokens:
                        continue
                    own = min(segment.closing, segment.tokens) if "boundary" in self.proxies else 0
                    query_rows = min(QUERY_ROWS_CAP, shape.group * (later + own))
                    work += self._segment_work(segment.tokens, kept, query_rows, shape)
            out.append(work)
        return out

    @staticmethod
    def _segment_work(tokens: int, kept: int, query_rows: int, shape: KvShape) -> Work:
        heads = shape.layers * shape.kv_heads
        flops = heads * (2.0 * query_rows * tokens * shape.head_dim + 5.0 * query_rows * tokens)
        keys = heads * tokens * shape.head_dim * shape.dtype_bytes
        queries = heads * query_rows * shape.head_dim * shape.dtype_bytes
        return Work(flops, keys + queries + 2.0 * kept * shape.row_bytes)
