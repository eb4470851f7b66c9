"""Eviction by the peers' scores. The scores themselves are in `peer_scores.py`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ...errors import UserError
from ...kernels.topk import pool_topk
from .base import Policy
from .captures import Key
from .peer_scores import (
    expected_attention_scores,
    keydiff_scores,
    knorm_scores,
    rkv_scores,
    snapkv_scores,
)
from .peers import ExpectedAttention, RKv, SnapKv
from .segment_state import Chosen, SegmentState, SegmentView, shared
from .states import Chunk, Eviction, Scene

if TYPE_CHECKING:
    from ..cache import KvCache


class PeerState(SegmentState):
    """Forced tokens, then the best scores; a window or sinks of the rule's own are scored above the rest."""

    def __init__(self, policy: Policy, scene: Scene) -> None:
        super().__init__(policy, scene)
        self._lengths: dict[Key, list[int]] = {}

    @abstractmethod
    def scores(self, view: SegmentView) -> Tensor:
        """(H_kv, n) scores of one layer of a segment."""

    def choose(self, view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        """The `keep` best."""
        return Chosen(pool_topk(shared(self.scores(view), self.policy.granularity), keep, forced))

    def begin(self, chunk: Chunk) -> bool:
        """Remember how many tokens of each chunk are captured."""
        wanted = super().begin(chunk)
        for key, start, end in self._wanted:
            self._lengths.setdefault(key, []).append(end - start)
        return wanted

    def close(self, turn: int, index: Tensor, cache: KvCache) -> Eviction | None:
        """Compact what is due."""
        outcome = super().close(turn, index, cache)
        held = set(self.captures.held())
        self._lengths = {key: lengths for key, lengths in self._lengths.items() if key in held}
        return outcome

    def own_rows(self, view: SegmentView) -> Tensor:
        """(H_kv, G, w, D) queries captured from the segment itself, tokens in order.

        Layers that read the same keys without owning any (KV sharing) count as more heads of the group.
        """
        key = Key(view.segment.turn, view.segment.kind, "own", view.first)
        found = self.captures.rows([key], view.layer)
        assert found is not None
        rows = found[0].unflatten(1, (self.shape.group, -1))
        lengths = self._lengths[key]
        readers = rows.shape[2] // sum(lengths)
        if readers == 1:
            return rows
        pieces = rows.split([length for length in lengths for _ in range(readers)], dim=2)
        return torch.cat([torch.cat(pieces[reader::readers], dim=2) for reader in range(readers)], dim=1)


class SnapKvState(PeerState):
    """`snapkv`."""

    def scores(self, view: SegmentView) -> Tensor:
        """By the window's queries."""
        rule = cast(SnapKv, self.policy)
        return snapkv_scores(self.own_rows(view), view.keys, view.scaling, rule.kernel)


class RKvState(PeerState):
    """`rkv`."""

    def scores(self, view: SegmentView) -> Tensor:
        """By the window's queries, and by what the keys repeat."""
        rule, rows = cast(RKv, self.policy), self.own_rows(view)
        return rkv_scores(rows, view.keys, view.scaling, rule.kernel, float(rule.mix), float(rule.threshold))


class ExpectedAttentionState(PeerState):
    """`expected_attention`."""

    def scores(self, view: SegmentView) -> Tensor:
        """By the statistics of the segment's queries."""
        rule, frequencies = cast(ExpectedAttention, self.policy), self.scene.frequencies
        if frequencies is None:
            raise UserError(f"policy {rule}: this model does not turn its keys by plain rotary positions")
        return expected_attention_scores(
            self.own_rows(view),
            view.keys,
            view.values,
            view.scaling,
            frequencies,
            view.first,
            sinks=min(rule.sinks, view.keys.shape[1] - 1),
            future=rule.n_future,
            covariance=rule.covariance,
            vnorm=rule.vnorm,
            epsilon=float(rule.epsilon),
        )


class KeyDiffState(PeerState):
    """`keydiff`."""

    def scores(self, view: SegmentView) -> Tensor:
        """By the keys alone."""
        return keydiff_scores(view.keys)


class KNormState(PeerState):
    """`knorm`."""

    def scores(self, view: SegmentView) -> Tensor:
        """By the keys alone."""
        return knorm_scores(view.keys)
