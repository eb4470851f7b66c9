"""Scoring and eviction of `te`: captured queries in, kept rows out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...kernels.reference import attention_mass, group_rows, pool_topk
from ..segments import size_of
from .base import QUERY_ROWS_CAP, KvShape, Policy
from .states import Chunk, Eviction, PolicyState
from .te import TokenEviction

if TYPE_CHECKING:
    from ...traces.tokens import TokenSegment
    from ..cache import KvCache


@dataclass
class Span:
    """Rows [start, start + count) of one segment."""

    segment: TokenSegment
    start: int
    count: int


class TokenEvictionState(PolicyState):
    """Spans of every segment, and captured queries by (turn, kind, purpose): one (H_q, L, D) per layer."""

    def __init__(self, policy: Policy, shape: KvShape, tokens: int, seed: int, device: torch.device) -> None:
        super().__init__(policy, shape, tokens, seed, device)
        assert isinstance(policy, TokenEviction)
        self.policy, self.seed = policy, seed
        self.spans: list[Span] = []
        self.captured: dict[tuple[int, str, str], list[Tensor]] = {}
        self._wanted: list[tuple[tuple[int, str, str], int, int]] = []
        self._scaling = 1.0

    # -- capture ------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk) -> bool:
        """Decide which of the chunk's queries are captured, and for what."""
        segment, policy, size = chunk.segment, self.policy, len(chunk.segment.ids)
        wanted: list[tuple[str, int]] = []
        future = segment.kind in policy.proxies and segment.turn > 0 and policy.delay > 0
        if future:
            wanted.append(("future", 0))
        if "boundary" in policy.proxies and self._compacts(segment):
            wanted.append(("own", size - min(segment.closing, size)))
        self._wanted = [
            ((segment.turn, segment.kind, purpose), max(0, start - chunk.begin), chunk.end - chunk.begin)
            for purpose, start in wanted
            if start < chunk.end
        ]
        return bool(self._wanted)

    def observe(self, layer: int, queries: Tensor, keys: Tensor, scaling: float, index: Tensor) -> None:
        """Keep copies of the wanted queries, post-RoPE."""
        self._scaling = scaling
        for key, start, end in self._wanted:
            layers = self.captured.setdefault(key, [])
            piece = queries[:, start:end].clone()
            if layer < len(layers):
                layers[layer] = torch.cat([layers[layer], piece], dim=1)
            else:
                layers.append(piece)

    def fed(self, chunk: Chunk) -> None:
        """Extend the segment's span."""
        count = chunk.end - chunk.begin
        if self.spans and self.spans[-1].segment is chunk.segment:
            self.spans[-1].count += count
        else:
            start = self.spans[-1].start + self.spans[-1].count if self.spans else 0
            self.spans.append(Span(chunk.segment, start, count))

    def aux_bytes(self) -> int:
        """Bytes of the captured queries."""
        return sum(q.nbytes for layers in self.captured.values() for q in layers)

    # -- eviction -----------------------------------------------------------------------------------------

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | None:
        """Compact turn `turn − delay` with the queries it waited for."""
        due = turn - self.policy.delay
        eviction = self._compact(due, turn, cache) if due >= 0 else None
        oldest = turn - self.policy.delay + 1
        self.captured = {
            key: queries
            for key, queries in self.captured.items()
            if key[0] > oldest or (key[0] == oldest and key[2] == "own")
        }
        return eviction

    def _compacts(self, segment: TokenSegment) -> bool:
        return segment.kind in ("assistant", "tool") or (segment.kind == "user" and self.policy.keep_user is not None)

    def _compact(self, due: int, now: int, cache: KvCache) -> Eviction | None:
        spans = [s for s in self.spans if s.segment.turn == due and self._compacts(s.segment)]
        work = [(s, self.policy.kept(size_of(s.segment))) for s in spans]
        work = [(s, keep) for s, keep in work if keep < s.count]
        if not work:
            return None
        start = work[0][0].start
        end = self.spans[-1].start + self.spans[-1].count
        pieces: list[Tensor] = []
        at = start
        for span, keep in work:
            pieces += [self._rows(at, span.start), self._select(span, keep, now, cache) + span.start]
            at = span.start + span.count
        pieces.append(self._rows(at, end))
        self._shrink({id(span): keep for span, keep in work})
        return Eviction(start, torch.cat(pieces, dim=2), segments=len(work))

    def _rows(self, begin: int, end: int) -> Tensor:
        rows = torch.arange(begin, end, device=self.device)
        return rows.expand(self.shape.layers, self.shape.kv_heads, end - begin)

    def _shrink(self, kept: dict[int, int]) -> None:
        at = 0
        for span in self.spans:
            span.start = at
            span.count = kept.get(id(span), span.count)
            at += span.count

    def _select(self, span: Span, keep: int, now: int, cache: KvCache) -> Tensor:
        """Rows of the span to keep, (layers, H_kv, keep), relative to its start, ascending."""
        forced = torch.zeros(span.count, dtype=torch.bool, device=self.device)
        if self.policy.protect == "structure":
            forced[list(span.segment.structural)] = True
        rows = slice(span.start, span.start + span.count)
        return torch.stack(
            [
                self._select_layer(cache.view(layer)[0][:, rows], layer, span.segment, keep, now, forced)
                for layer in range(self.shape.layers)
            ]
        )

    def _select_layer(
        self, keys: Tensor, layer: int, segment: TokenSegment, keep: int, now: int, forced: Tensor
    ) -> Tensor:
        scores = [
            attention_mass(self._cap(rows), keys, self._scaling, reduction=self.policy.reduction)
            for rows in self._query_rows(layer, segment, now)
        ]
        if self.policy.granularity == "token":
            scores = [s.mean(0, keepdim=True).expand_as(s) for s in scores]
        taken = forced.expand(keys.shape[0], -1)
        if not scores:
            # No later query exists (a turn without assistant tokens): keep the forced, then the first tokens.
            return pool_topk(torch.zeros(keys.shape[:2], device=self.device), keep, taken)
        free = keep - int(forced.sum())
        for number, score in enumerate(scores):
            share = free * (number + 1) // len(scores) - free * number // len(scores)
            rows = pool_topk(score, int(taken[0].sum()) + share, taken)
            taken = torch.zeros_like(taken).scatter(1, rows, True)
        return taken.nonzero()[:, 1].view(keys.shape[0], keep)

    def _query_rows(self, layer: int, segment: TokenSegment, now: int) -> list[Tensor]:
        """(H_kv, R, D) query rows of each proxy source, in the order of the policy's option."""
        out: list[Tensor] = []
        for source in self.policy.proxies:
            if source == "boundary":
                keys = [(segment.turn, segment.kind, "own")]
            else:
                keys = [(turn, source, "future") for turn in range(segment.turn + 1, now + 1)]
            found = [self.captured[key][layer] for key in keys if key in self.captured]
            if found:
                out.append(group_rows(torch.cat(found, dim=1), self.shape.kv_heads))
        return out

    def _cap(self, rows: Tensor) -> Tensor:
        """At most 4,096 rows per KV head, by seeded subsampling: the same rows for every layer and head."""
        count = rows.shape[1]
        if count <= QUERY_ROWS_CAP:
            return rows
        generator = torch.Generator().manual_seed(self.seed)
        pick = torch.randperm(count, generator=generator)[:QUERY_ROWS_CAP].sort().values
        return rows[:, pick.to(rows.device)]
