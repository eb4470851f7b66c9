"""`te`: token eviction. The keys that proxy queries read most are kept; the rest are freed, once per turn.

Score of key j under proxy queries i (arXiv 2608.00902, eq. 2-3): s_j = sqrt(mean_i softmax_j(q_i·k_j·scale)²),
softmax over the segment. Per layer and KV head the m = max(1, ⌈keep·n⌉) best keys stay, structural tokens
among them. The queries of all heads of a KV head are concatenated; a mix of sources shares the budget evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import QUERY_ROWS_CAP, SegmentSize
from .proxy import FUTURE, ProxyPolicy


@dataclass(frozen=True)
class TokenEviction(ProxyPolicy):
    """Turn t is compacted when turn t + delay closes, its assistant and tool segments separately."""

    name = "te"
    summary = "token eviction: keep what the agent's own later queries read"
    formula = "s_j = sqrt(mean_i softmax_j(q_i·k_j)²), top m = max(1, ⌈keep·n⌉) per layer and KV head"
    source = "arXiv 2608.00902, eq. 2-3; compaction.md 1 and 8"

    def scoring_rows(self, segment: SegmentSize, future: int, group: int) -> int:
        """Each source is capped by itself."""
        sources = sum(p in FUTURE for p in self.proxies)
        own = (group * self.own_queries(segment), group * self.copy_queries(segment))
        return min(sources * QUERY_ROWS_CAP, group * future) + sum(min(QUERY_ROWS_CAP, rows) for rows in own)
