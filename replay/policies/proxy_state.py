"""Capture of proxy queries for `te` and `am`: later turns, closing tokens, or a repeated copy of the turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ...kernels.mass import attention_mass
from ...kernels.topk import pool_topk
from ..segments import size_of
from .base import Policy
from .captures import Key, Rows
from .proxy import FUTURE, ProxyPolicy
from .segment_state import SegmentState, SegmentView, shared
from .sight import Sight
from .states import Chunk, Copy, Scene


class ProxyState(SegmentState):
    """A segment state whose queries come from the policy's proxies."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.proxy = cast(ProxyPolicy, policy)
        self._copied: list[tuple[Key, int, int]] = []
        self._begin = 0

    def future_kinds(self) -> tuple[str, ...]:
        """The sources that lie in later turns."""
        return tuple(p for p in self.proxy.proxies if p in FUTURE)

    def begin(self, chunk: Chunk) -> bool:
        """Remember where the chunk begins: a segment's own queries do not see all of it."""
        self._begin = chunk.begin
        return super().begin(chunk)

    def capture(self, key: Key, layer: int, sight: Sight, part: slice) -> None:
        """Keep `part` of a chunk's queries, and what their softmax summed to over the whole cache if need be."""
        totals, seen = None, range(0)
        if self.proxy.needs_totals:
            totals = sight.log_totals(part)
            if key.purpose == "own":
                seen = range(self._begin + part.start + 1, self._begin + part.stop + 1)
        self.captures.add(key, layer, sight.queries[:, part], totals, seen)

    def copies(self, turn: int) -> Sequence[Copy]:
        """The turn's segments after the prompt that asks for them, in one piece."""
        if "repeat" not in self.proxy.proxies or not self.due_spans(turn):
            return ()
        ids, self._copied = list(self.scene.prompts["repeat"]), []
        for span in self.spans_of(turn):
            begin = len(ids)
            ids += span.segment.ids
            if self.proxy.copy_queries(size_of(span.segment)):
                self._copied.append((Key(turn, span.segment.kind, "copy", span.first), begin, len(ids)))
        return (Copy(turn, tuple(ids)),)

    def observe_copy(self, copy: Copy, begin: int, layer: int, sight: Sight) -> None:
        """Keep the copied tokens' queries, each for its own segment."""
        self.scaling = sight.scaling
        end = begin + sight.queries.shape[1]
        for key, first, last in self._copied:
            if first < end and begin < last:
                part = slice(max(first, begin) - begin, min(last, end) - begin)
                self.capture(key, layer, sight, part)

    def source_rows(self, source: str, view: SegmentView) -> Rows | None:
        """Query rows of one source for a segment, uncapped; None where it has none."""
        turn, kind = view.segment.turn, view.segment.kind
        if source == "boundary":
            keys = [Key(turn, kind, "own", view.first)]
        elif source == "repeat":
            keys = [Key(turn, kind, "copy", view.first)]
        else:
            keys = [Key(later, source, "future") for later in range(turn + 1, view.now + 1)]
        return self.captures.rows(keys, view.layer)

    def sources(self, view: SegmentView) -> list[Rows]:
        """Query rows of every source that has any, in the order of the option."""
        found = [self.source_rows(source, view) for source in self.proxy.proxies]
        return [rows for rows in found if rows is not None]

    def score(self, rows: Rows, view: SegmentView) -> Tensor:
        """(H_kv, n) scores of the segment's keys under (capped) query rows."""
        rows = self.captures.capped(rows)
        own = self.proxy.normaliser == "global"  # the model's own weights; else the softmax over the segment
        return attention_mass(
            rows.queries,
            view.keys,
            view.scaling,
            reduction=self.proxy.reduction,
            limits=rows.seen if own else None,
            log_total=rows.totals if own else None,
        )

    def select(self, sources: Sequence[Rows], view: SegmentView, keep: int, forced: Tensor) -> Tensor:
        """(H_kv, keep) rows: the forced tokens, then each source's best in turn, its share of what is left."""
        heads, count = view.keys.shape[:2]
        taken = forced.expand(heads, -1)
        if not sources:
            # No later query exists (turns without assistant tokens): keep the forced, then the first tokens.
            return pool_topk(torch.zeros(heads, count, device=self.device), keep, taken)
        free, held = keep - int(forced.sum()), int(forced.sum())
        for number, rows in enumerate(sources):
            score = shared(self.score(rows, view), self.policy.granularity)
            held += free * (number + 1) // len(sources) - free * number // len(sources)
            best = pool_topk(score, held, taken)
            taken = torch.zeros_like(taken).scatter(1, best, True)
        return taken.nonzero()[:, 1].view(heads, keep)
