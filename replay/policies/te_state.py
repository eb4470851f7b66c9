"""Scoring of `te`: each source of proxy queries fills its share of the kept rows."""

from __future__ import annotations

from torch import Tensor

from .proxy_state import ProxyState
from .segment_state import Chosen, SegmentView


class TokenEvictionState(ProxyState):
    """Keeps the keys that proxy queries read most."""

    def choose(self, view: SegmentView, keep: int, forced: Tensor) -> Chosen:
        """Forced tokens, then each source's best in turn, its share of what is left."""
        return Chosen(self.select(self.sources(view), view, keep, forced))
