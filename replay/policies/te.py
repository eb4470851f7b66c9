"""`te`: token eviction. The keys that proxy queries read most are kept; the rest are freed, once per turn.

Score of key j under proxy queries i (arXiv 2608.00902, eq. 2-3): s_j = sqrt(mean_i softmax_j(q_i·k_j·scale)²),
softmax over the segment (`normaliser`: see `proxy.py`). Per layer and KV head the m = max(1, ⌈keep·n⌉) best keys
stay, structural tokens among them. The queries of all heads of a KV head are concatenated. Of what the structural
tokens leave of m, each of c sources in the order of the option takes the best 1/c that no earlier one took, the ith
⌊i·m/c⌋ − ⌊(i−1)·m/c⌋; a source without queries leaves its share to the others. Each is capped at 4,096 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import QUERY_ROWS_CAP, SegmentSize, TurnSizes
from .proxy import ProxyPolicy


@dataclass(frozen=True)
class TokenEviction(ProxyPolicy):
    """Turn t is compacted when turn t + delay closes, its assistant and tool segments separately."""

    name = "te"
    summary = "token eviction: keep what the agent's own later queries read"
    formula = "s_j = sqrt(mean_i softmax_j(q_i·k_j)²), top m = max(1, ⌈keep·n⌉) per layer and KV head"
    source = "arXiv 2608.00902, eq. 2-3; compaction.md 1 and 8"

    def scoring_rows(self, segment: SegmentSize, later: Sequence[TurnSizes], group: int) -> int:
        """Each source is capped by itself."""
        return sum(min(QUERY_ROWS_CAP, rows) for rows in self.source_rows(segment, later, group))
