"""`attention`: evict the tokens with the least decayed attention activity once rows pass the budget.

Each query updates A_j ← decay·A_j + (1 − decay)·a_j with a_j the softmax weight of key j, averaged over the
G query heads of its KV head (compaction.md 12; H2O, arXiv 2306.14048). `locality=distance` counts only
weight across at least `distance` tokens; `normalised` divides A_j by Σ of the same decay weights over the
queries that could see j, so that young tokens are not punished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from .base import KvShape, SegmentSize, Work
from .options import choice, decimal_in, integer, option
from .protect import protect_option
from .running import TRIGGER_SHOW, RunningPolicy, gather_work, parse_trigger, protected_or_user


@dataclass(frozen=True)
class Attention(RunningPolicy):
    """Incremental attention-score eviction at 110 % of the budget."""

    name = "attention"
    summary = "attention-score eviction: drop the least active tokens"
    formula = "A_j ← decay·A_j + (1 − decay)·mean_g a_gj per query; evict the smallest A"
    source = "compaction.md 12; H2O, arXiv 2306.14048"

    trigger: str = option("threshold:1.1", "when the budget is enforced", parse=parse_trigger, show=TRIGGER_SHOW)
    decay: Decimal = option(Decimal("0.99"), "per query", parse=decimal_in("0", "1"), show="0 … 1")
    locality: str = option(
        "none",
        "correction for near tokens",
        parse=choice("none", "distance", "normalised"),
        show="none | distance | normalised",
    )
    distance: int = option(16, "least distance counted by locality=distance", parse=integer(1), show="int ≥ 1")
    protect: str = protect_option()

    @property
    def holds_activity(self) -> bool:
        """One float32 per compactable row, layer and KV head."""
        return True

    def forced_in(self, segment: SegmentSize, offset: int) -> int:
        """User tokens whole, structural tokens elsewhere."""
        return protected_or_user(segment, offset, self.protect)

    def work(self, segments: Sequence[SegmentSize], shape: KvShape) -> list[Work]:
        """The second QKᵀ over the visible rows that yields the weights, and the gathers."""
        per_pair = shape.layers * shape.q_heads * (2.0 * shape.head_dim + 5.0)
        out: list[Work] = []
        for step in self.walk(segments):
            pairs = step.scored + step.tokens * step.fixed
            key_bytes = step.rows_peak * shape.row_bytes / 2
            out.append(Work(pairs * per_pair, key_bytes) + gather_work(step, shape))
        return out
