"""Scores of `kvzip`: a copy of the segment is fed, and the largest attention on each key is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...errors import UserError
from ...kernels.mass import attention_mass, log_totals
from ...kernels.reference import group_rows
from ...kernels.topk import pool_topk
from ..segments import size_of
from .base import Policy
from .kvzip import OVERLAP, KvZip
from .peers_state import PeerState
from .segment_state import SegmentView, Span
from .states import Copy, Eviction, Scene

if TYPE_CHECKING:
    from ..cache import KvCache
    from .sight import Sight


@dataclass(frozen=True)
class Piece:
    """Tokens [begin, end) of a segment whose first token is the logical token `first`, in rows from `row` on."""

    first: int
    begin: int
    end: int
    row: int


class KvZipState(PeerState):
    """One float32 (layers, H_kv, n) per segment that waits for its compaction, by the segment's first token."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.rule = cast(KvZip, policy)
        self.recalled: dict[int, Tensor] = {}
        self._turn_of: dict[int, int] = {}

    def copies(self, turn: int) -> Sequence[Copy]:
        """Every chunk of the turn's segments that will shrink, after the request to repeat it."""
        out: list[Copy] = []
        for span in self.spans_of(turn):
            if self.rule.kept(size_of(span.segment)) < span.count:
                size = (self.shape.layers, self.shape.kv_heads, span.count)
                self.recalled[span.first] = torch.zeros(size, device=self.device)
                self._turn_of[span.first] = turn
                out += [self._copy(span, begin) for begin in range(0, span.count, self.rule.chunk)]
        return out

    def observe_copy(self, copy: Copy, begin: int, layer: int, sight: Sight) -> None:
        """Attention over [sinks ‖ chunk ‖ what was fed so far], its maximum on each key of the chunk."""
        piece = cast(Piece, copy.key)
        keys, count = sight.keys, piece.end - piece.begin
        length, rows = sight.queries.shape[1], keys.shape[1]
        fed = begin + length
        sinks = min(self.rule.sinks, piece.row)
        seen = torch.cat([keys[:, :sinks], keys[:, piece.row : piece.row + count], keys[:, rows - fed :]], dim=1)
        limits = torch.arange(sinks + count + begin + 1, sinks + count + fed + 1, device=self.device)
        grouped = group_rows(sight.queries, self.shape.kv_heads)
        totals = log_totals(grouped, seen, sight.scaling, limits=limits.repeat(self.shape.group))
        chunk = seen[:, sinks : sinks + count]
        most = attention_mass(grouped, chunk, sight.scaling, reduction="max", log_total=totals)
        best = self.recalled[piece.first][layer, :, piece.begin : piece.end]
        torch.maximum(best, most.to(best.dtype), out=best)

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | None:
        """Compact the turn that is due, and forget its scores."""
        if self.rule.ragged:
            raise UserError(f"policy {self.policy}: heads keep unequal numbers of tokens, which no cache can hold")
        eviction = super().close(turn, index, cache)
        for first in [f for f, t in self._turn_of.items() if t <= turn - self.rule.delay]:
            del self.recalled[first], self._turn_of[first]
        return eviction

    def scores(self, view: SegmentView) -> Tensor:
        """The largest attention on every key."""
        return self.recalled[view.first][view.layer]

    def everywhere(self) -> Tensor:
        """(layers, H_kv, tokens) bool: what scope=global keeps of all that was fed, each segment by itself."""
        heads = self.shape.layers * self.shape.kv_heads
        parts: list[Tensor] = []
        for span in self.spans:
            stay = torch.ones(heads * span.count, dtype=torch.bool, device=self.device)
            if span.first in self.recalled:
                scores, forced = self.recalled[span.first].flatten(), self.forced(span).repeat(heads)
                rows = pool_topk(scores, self.rule.kept_of(size_of(span.segment), heads), forced)
                stay = torch.zeros_like(stay).scatter(0, rows, True)
            parts.append(stay.view(self.shape.layers, self.shape.kv_heads, span.count))
        return torch.cat(parts, dim=2)

    def aux_bytes(self) -> int:
        """Bytes of the scores that wait."""
        return super().aux_bytes() + sum(scores.nbytes for scores in self.recalled.values())

    def _copy(self, span: Span, begin: int) -> Copy:
        ids, prompts = span.segment.ids, self.scene.prompts
        end = min(begin + self.rule.chunk, span.count)
        asked = (*prompts["recall_on"], *ids[begin - OVERLAP : begin]) if begin else prompts["recall"]
        piece = Piece(span.first, begin, end, span.start + begin)
        return Copy(piece, (*asked, *prompts["recall_reply"], *ids[begin:end]))
