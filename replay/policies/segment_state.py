"""Eviction of whole segments: captured queries in, kept rows out, once per segment. A scorer implements `choose`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..segments import size_of
from .base import Policy
from .captures import Captures, Key
from .protect import forced_offsets
from .segment import SegmentPolicy
from .states import Chunk, Copy, Eviction, PolicyState, Scene

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache
    from .sight import Sight


@dataclass
class Span:
    """Rows [start, start + count) of one segment, whose first token is the logical token `first`."""

    segment: TokenSegment
    start: int
    count: int
    first: int


@dataclass(frozen=True)
class SegmentView:
    """One layer of a raw segment: (H_kv, n, D) keys and values, and the turn that closes now."""

    layer: int
    keys: Tensor
    values: Tensor
    scaling: float
    segment: TokenSegment
    first: int
    now: int


@dataclass(frozen=True)
class Chosen:
    """What stays of one layer: (H_kv, m) rows of the segment, ascending; new values (H_kv, m, D), β (H_kv, m)."""

    index: Tensor
    values: Tensor | None = None
    bias: Tensor | None = None


@dataclass
class Tail:
    """The rows that stay, piece by piece, one list per layer."""

    index: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    bias: list[Tensor] = field(default_factory=list)


class SegmentState(PolicyState):
    """Spans of every segment, and what was captured to score them."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.policy = cast(SegmentPolicy, policy)
        self.spans: list[Span] = []
        self.captures = Captures(scene.shape, scene.seed)
        self.scaling = 1.0
        self._wanted: list[tuple[Key, int, int]] = []

    @abstractmethod
    def choose(self, view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        """The `keep` rows of a segment that stay in one layer; `forced` (n,) bool are among them."""

    # -- capture --------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk) -> bool:
        """Decide which of the chunk's queries are captured, and for what."""
        segment, count = chunk.segment, len(chunk.segment.ids)
        wanted: list[tuple[Key, int]] = []
        if segment.kind in self.future_kinds() and segment.turn > 0:
            wanted.append((Key(segment.turn, segment.kind, "future"), 0))
        if own := self.policy.own_queries(size_of(segment)):
            wanted.append((Key(segment.turn, segment.kind, "own", chunk.first - chunk.begin), count - own))
        self._wanted = [
            (key, max(0, start - chunk.begin), chunk.end - chunk.begin) for key, start in wanted if start < chunk.end
        ]
        return bool(self._wanted)

    def future_kinds(self) -> tuple[str, ...]:
        """Kinds of later segments whose queries are captured."""
        return ()

    def observe(self, layer: int, sight: Sight, index: Tensor) -> None:
        """Keep copies of the wanted queries, post-RoPE."""
        self.scaling = sight.scaling
        for key, start, end in self._wanted:
            self.capture(key, layer, sight, slice(start, end))

    def capture(self, key: Key, layer: int, sight: Sight, part: slice) -> None:
        """Keep `part` of a chunk's queries."""
        self.captures.add(key, layer, sight.queries[:, part])

    def fed(self, chunk: Chunk) -> None:
        """Extend the segment's span."""
        count = chunk.end - chunk.begin
        if self.spans and self.spans[-1].segment is chunk.segment:
            self.spans[-1].count += count
        else:
            start = self.spans[-1].start + self.spans[-1].count if self.spans else 0
            self.spans.append(Span(chunk.segment, start, count, chunk.first))

    def aux_bytes(self) -> int:
        """Bytes of the captured queries."""
        return self.captures.nbytes

    # -- eviction -------------------------------------------------------------------------------------------

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | None:
        """Compact turn `turn − delay` with the queries it waited for."""
        due = turn - self.policy.delay
        eviction = self._compact(due, turn, cache) if due >= 0 else None
        oldest = due + 1
        self.captures.drop(
            key for key in self.captures.held() if key.turn < oldest or (key.turn == oldest and key.purpose == "future")
        )
        return eviction

    def due_spans(self, turn: int) -> list[tuple[Span, int]]:
        """The segments of a turn that shrink, with the rows they keep."""
        spans = [s for s in self.spans if s.segment.turn == turn]
        work = [(s, self.policy.kept(size_of(s.segment))) for s in spans]
        return [(s, keep) for s, keep in work if keep < s.count]

    def _compact(self, due: int, now: int, cache: KvCache) -> Eviction | None:
        work = self.due_spans(due)
        if not work:
            return None
        start, end = work[0][0].start, self.spans[-1].start + self.spans[-1].count
        tails = [self._tail(layer, work, start, end, now, cache) for layer in range(self.shape.layers)]
        kept = {id(span): keep for span, keep in work}
        at = 0
        for span in self.spans:
            span.start, span.count = at, kept.get(id(span), span.count)
            at += span.count
        parts = [[torch.cat(pieces, dim=1) for pieces in (t.index, t.values, t.bias) if pieces] for t in tails]
        index, *rest = (torch.stack(layers) for layers in zip(*parts, strict=True))
        values, bias = rest or (None, None)
        return Eviction(start, index, segments=len(work), values=values, bias=bias)

    def _tail(
        self, layer: int, work: Sequence[tuple[Span, int]], start: int, end: int, now: int, cache: KvCache
    ) -> Tail:
        """One layer's rows from `start` on: the chosen ones of each span, and everything between and after."""
        keys, values = cache.view(layer)
        bias = cache.bias(layer)
        fitted = self.policy.holds_bias
        tail = Tail()

        def stay(begin: int, stop: int) -> None:
            tail.index.append(torch.arange(begin, stop, device=self.device).expand(keys.shape[0], -1))
            if fitted:
                tail.values.append(values[:, begin:stop])
                none = torch.zeros(keys.shape[0], stop - begin, device=self.device)
                tail.bias.append(none if bias is None else bias[:, begin:stop])

        at = start
        for span, keep in work:
            stay(at, span.start)
            rows = slice(span.start, span.start + span.count)
            view = SegmentView(layer, keys[:, rows], values[:, rows], self.scaling, span.segment, span.first, now)
            chosen = self.choose(view, keep, self.forced(span))
            tail.index.append(chosen.index + span.start)
            if fitted:
                assert chosen.values is not None
                assert chosen.bias is not None
                tail.values.append(chosen.values)
                tail.bias.append(chosen.bias)
            at = rows.stop
        stay(at, end)
        return tail

    def forced(self, span: Span) -> Tensor:
        """(n,) bool: the protected tokens of a segment."""
        forced = torch.zeros(span.count, dtype=torch.bool, device=self.device)
        forced[list(forced_offsets(size_of(span.segment), self.policy.protect))] = True
        return forced

    # -- copies ---------------------------------------------------------------------------------------------

    def spans_of(self, turn: int) -> list[Span]:
        """The compactable segments of a turn, in order."""
        return [s for s in self.spans if s.segment.turn == turn and self.policy.compacts(size_of(s.segment))]

    def copies(self, turn: int) -> Sequence[Copy]:
        """None, unless a proxy asks for them."""
        return ()


def shared(scores: Tensor, granularity: str) -> Tensor:
    """(H_kv, n) scores, averaged over heads when all heads of a layer must keep the same tokens."""
    return scores.mean(0, keepdim=True).expand_as(scores) if granularity == "token" else scores
