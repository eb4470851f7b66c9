"""Capture of proxy queries for `te` and `am`: later turns, closing tokens, or a repeated copy of the turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from ...kernels.reference import attention_mass, group_rows
from .base import Policy
from .captures import Key
from .proxy import FUTURE, ProxyPolicy
from .segment_state import SegmentState, SegmentView
from .states import Copy, Scene

Rows = tuple[Tensor, Tensor | None]
"""(H_kv, R, D) query rows and, under a global normaliser, (H_kv, R) log-sum-exps."""


class ProxyState(SegmentState):
    """A segment state whose queries come from the policy's proxies."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.proxy = cast(ProxyPolicy, policy)
        self._copied: list[tuple[Key, int, int]] = []

    def future_kinds(self) -> tuple[str, ...]:
        """The sources that lie in later turns."""
        return tuple(p for p in self.proxy.proxies if p in FUTURE)

    def capture(
        self, key: Key, layer: int, queries: Tensor, part: slice, keys: Tensor, scaling: float, bias: Tensor | None
    ) -> None:
        """Keep `part` of a chunk's queries, and what their softmax summed to over the whole cache if need be."""
        totals = None
        if self.proxy.normaliser == "global":
            totals = log_totals(queries, keys, scaling, bias)[:, part]
        self.captures.add(key, layer, queries[:, part], totals)

    def copies(self, turn: int) -> Sequence[Copy]:
        """The turn's segments after the prompt that asks for them, in one piece."""
        if "repeat" not in self.proxy.proxies:
            return ()
        ids, self._copied = list(self.scene.prompts["repeat"]), []
        for span in self.spans_of(turn):
            begin = len(ids)
            ids += span.segment.ids
            self._copied.append((Key(turn, span.segment.kind, "copy", span.first), begin, len(ids)))
        return (Copy(turn, tuple(ids)),)

    def observe_copy(
        self, copy: Copy, begin: int, layer: int, queries: Tensor, keys: Tensor, scaling: float, bias: Tensor | None
    ) -> None:
        """Keep the copied tokens' queries, each for its own segment."""
        self.scaling = scaling
        end = begin + queries.shape[1]
        for key, first, last in self._copied:
            if first < end and begin < last:
                part = slice(max(first, begin) - begin, min(last, end) - begin)
                self.capture(key, layer, queries, part, keys, scaling, bias)

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
        queries, totals = self.captures.capped(*rows)
        return attention_mass(queries, view.keys, view.scaling, reduction=self.proxy.reduction, log_total=totals)


def log_totals(queries: Tensor, keys: Tensor, scaling: float, bias: Tensor | None) -> Tensor:
    """Log-sum-exp of the logits of every query over all rows it sees, (H_q, L): the chunk's own rows are last."""
    heads, length, _ = queries.shape
    rows, kv_heads = keys.shape[1], keys.shape[0]
    logits = group_rows(queries, kv_heads).float() @ keys.float().transpose(1, 2) * scaling
    if bias is not None:
        logits = logits + bias[:, None]
    limits = torch.arange(rows - length + 1, rows + 1, device=keys.device).repeat(heads // kv_heads)
    hidden = torch.arange(rows, device=keys.device)[None] >= limits[:, None]
    return logits.masked_fill(hidden, float("-inf")).logsumexp(-1).view(heads, length)
